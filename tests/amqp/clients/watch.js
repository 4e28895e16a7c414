// Watches all exchanges of a URL with amqplib and prints each message as a line of JSON.
const amqp = require('amqplib');

async function main(url, count) {
  const connection = await amqp.connect(url);
  const channel = await connection.createChannel();
  await channel.prefetch(10);
  const { queue } = await channel.assertQueue('', { exclusive: true });
  for (const state of ['pending', 'running', 'completed', 'failed']) {
    await channel.assertExchange(`task_${state}_v1`, 'topic', { durable: true });
    await channel.bindQueue(queue, `task_${state}_v1`, '*.*.*.*.default.#');
  }
  let seen = 0;
  await channel.consume(queue, async (message) => {
    const { exchange, routingKey } = message.fields;
    const id = message.properties.messageId;
    const body = JSON.parse(message.content.toString());
    console.log(JSON.stringify({ id, exchange, routingKey, state: body.status.state }));
    channel.ack(message);
    seen += 1;
    if (seen === count) {
      await channel.close();
      await connection.close();
    }
  });
  console.log('ready');
}

main(process.argv[2], Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
