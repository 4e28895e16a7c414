<?php
// A worker whose results have as many bytes as its jobs say.
//   enlarging.php HOST:PORT FUNCTION     prints a line for each time it runs a job
[, $server, $function] = $argv;
[$host, $port] = explode(':', $server);
$worker = new GearmanWorker();
$worker->addServer($host, (int) $port);
$worker->addFunction($function, function ($job) {
    echo "ran\n";
    return str_repeat('x', (int) $job->workload());
});
while (true) {
    @$worker->work();
}
