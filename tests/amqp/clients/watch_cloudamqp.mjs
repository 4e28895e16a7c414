// Watches all exchanges of a URL with @cloudamqp/amqp-client and prints each message as a line of JSON.
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.NODE_PATH}/`);
const { AMQPClient } = require('@cloudamqp/amqp-client');

async function main(url, count) {
  const connection = await new AMQPClient(url).connect();
  const channel = await connection.channel();
  await channel.prefetch(10);
  const { name } = await channel.queueDeclare('', { exclusive: true });
  for (const state of ['pending', 'running', 'completed', 'failed']) {
    await channel.exchangeDeclare(`task_${state}_v1`, 'topic', { durable: true });
    await channel.queueBind(name, `task_${state}_v1`, '*.*.*.*.default.#');
  }
  let seen = 0;
  const consumer = await channel.basicConsume(name, { noAck: false }, async (message) => {
    const { exchange, routingKey } = message;
    const id = message.properties.messageId;
    const body = JSON.parse(message.bodyString());
    console.log(JSON.stringify({ id, exchange, routingKey, state: body.status.state }));
    await message.ack();
    seen += 1;
    if (seen === count) {
      await consumer.cancel();
      await connection.close();
    }
  });
  console.log('ready');
}

main(process.argv[2], Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
