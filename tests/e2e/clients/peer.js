// gearmanode as the program of a test.
//   peer.js work HOST:PORT PREFIX       serves PREFIX.upper and PREFIX.die until it is stopped
//   peer.js run HOST:PORT FUNCTION DATA runs a job, prints its result
//   peer.js send HOST:PORT FUNCTION DATA submits a background job, prints its handle
'use strict';
const gearmanode = require('gearmanode');
gearmanode.Client.logger.level = 'error';

const [, , mode, server, name, data] = process.argv;
const [host, port] = server.split(':');
const options = { host, port: Number(port) };

function end(text, code) {
  process.stdout.write(text, () => process.exit(code));
}

if (mode === 'work') {
  const worker = gearmanode.worker(options);
  worker.addFunction(`${name}.upper`, (job) =>
    job.workComplete(job.payload.toString().toUpperCase()));
  worker.addFunction(`${name}.die`, (job) => job.reportError());
  worker.on('error', (error) => end(String(error), 1));
} else {
  const client = gearmanode.client(options);
  const job = client.submitJob(name, data, { background: mode === 'send' });
  if (mode === 'send') {
    job.on('created', () => end(job.handle, 0));
  }
  job.on('complete', () => end(job.response.toString(), 0));
  job.on('failed', () => end('failed', 1));
  job.on('error', (error) => end(String(error), 1));
}
