<?php
// A worker that registers its function with a timeout and takes its time for each job.
//   timed.php HOST:PORT FUNCTION TIMEOUT SECONDS     prints a line for each time it runs a job
[, $server, $function, $timeout, $seconds] = $argv;
[$host, $port] = explode(':', $server);
$worker = new GearmanWorker();
$worker->addServer($host, (int) $port);
$worker->addFunction($function, function ($job) use ($seconds) {
    echo "ran\n";
    usleep((int) ($seconds * 1000000));
    return strtoupper($job->workload());
}, null, (int) $timeout);
while (true) {
    $worker->work();
}
