# A worker that registers its function with a timeout and takes its time for each job.
#   timed.pl HOST:PORT FUNCTION TIMEOUT SECONDS     prints a line for each time it runs a job
use strict;
use warnings;
use Gearman::Worker;
use Time::HiRes 'sleep';

$| = 1;
my ($server, $function, $timeout, $seconds) = @ARGV;
my $worker = Gearman::Worker->new(job_servers => [$server]);
$worker->register_function($function, $timeout, sub {
    print "ran\n";
    sleep $seconds;
    return uc $_[0]->arg;
});
$worker->work while 1;
