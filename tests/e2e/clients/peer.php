<?php
// The PHP extension on libgearman, as the program of a test.
//   peer.php work HOST:PORT PREFIX       serves PREFIX.upper, .die and .steps until it is stopped
//   peer.php run HOST:PORT FUNCTION DATA runs a job, prints its result
//   peer.php send HOST:PORT FUNCTION DATA submits a background job, prints its handle
//   peer.php watch HOST:PORT FUNCTION DATA runs a job, prints every packet about it
//   peer.php ask HOST:PORT HANDLE UNIQUE prints what is known of a job by its handle and unique
[, $mode, $server, $function] = $argv;
$data = $argv[4] ?? '';
[$host, $port] = explode(':', $server);

if ($mode === 'work') {
    $worker = new GearmanWorker();
    $worker->setId("php $function");
    $worker->addServer($host, (int) $port);
    $worker->addFunction("$function.upper", fn ($job) => strtoupper($job->workload()));
    $worker->addFunction("$function.die", function ($job) {
        $job->sendException('it broke');
    });
    $worker->addFunction("$function.steps", function ($job) {
        $job->sendStatus(1, 3);
        $job->sendData('piece');
        $job->sendWarning('careful');
        return $job->unique();
    });
    while ($worker->work()) {
    }
    fwrite(STDERR, $worker->error());
    exit(1);
}

$client = new GearmanClient();
$client->addServer($host, (int) $port);
$client->setTimeout(600000);
if ($mode === 'send') {
    echo $client->doBackground($function, $data);
} elseif ($mode === 'ask') {
    echo json_encode([$client->jobStatus($function), $client->jobStatusByUniqueKey($data)]);
} elseif ($mode === 'watch') {
    $client->addOptions(GEARMAN_CLIENT_FREE_TASKS);
    $client->setExceptionCallback(function ($task) { echo "exception {$task->data()}\n"; });
    $client->setStatusCallback(function ($task) {
        echo "status {$task->taskNumerator()}/{$task->taskDenominator()}\n";
    });
    $client->setDataCallback(function ($task) { echo "data {$task->data()}\n"; });
    $client->setWarningCallback(function ($task) { echo "warning {$task->data()}\n"; });
    $client->setCompleteCallback(function ($task) { echo "complete {$task->data()}\n"; });
    $client->setFailCallback(function ($task) { echo "fail\n"; });
    $client->addTask($function, $data, null, 'watched');
    $client->runTasks();
} else {
    $result = $client->doNormal($function, $data);
    if ($client->returnCode() !== GEARMAN_SUCCESS) {
        echo 'failed';
        exit(1);
    }
    echo $result;
}
