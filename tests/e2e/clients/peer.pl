# Gearman::Client and Gearman::Worker, as the program of a test.
#   peer.pl work HOST:PORT PREFIX       serves PREFIX.upper and PREFIX.die until it is stopped
#   peer.pl run HOST:PORT FUNCTION DATA runs a job, prints its result
#   peer.pl send HOST:PORT FUNCTION DATA submits a background job, prints its handle
use strict;
use warnings;
use Gearman::Client;
use Gearman::Task;
use Gearman::Worker;

$| = 1;
my ($mode, $server, $function, $data) = @ARGV;

if ($mode eq 'work') {
    my $worker = Gearman::Worker->new(job_servers => [$server]);
    $worker->register_function("$function.upper" => sub { uc $_[0]->arg });
    $worker->register_function("$function.die" => sub { die "it broke\n" });
    $worker->work while 1;
}

my $client = Gearman::Client->new(job_servers => [$server]);
if ($mode eq 'send') {
    my $handle = $client->dispatch_background($function, $data);
    print $handle =~ s{^.*//}{}r;
    exit 0;
}

my ($result, $failed);
my $tasks = $client->new_task_set;
$tasks->add_task(Gearman::Task->new($function, \$data, {
    on_complete => sub { $result = ${ $_[0] } },
    on_fail => sub { $failed = 1 },
}));
$tasks->wait;
if ($failed || !defined $result) {
    print "failed";
    exit 1;
}
print $result;
