# Gearman::Client and Gearman::Worker with a prefix, which a TAB keeps from the function.
#   prefixed.pl work HOST:PORT PREFIX FUNCTION       serves it until it is stopped
#   prefixed.pl run HOST:PORT PREFIX FUNCTION DATA   runs a job, prints its result
use strict;
use warnings;
use Gearman::Client;
use Gearman::Worker;

$| = 1;
my ($mode, $server, $prefix, $function, $data) = @ARGV;
if ($mode eq 'work') {
    my $worker = Gearman::Worker->new(job_servers => [$server], prefix => $prefix);
    $worker->register_function($function => sub { scalar reverse $_[0]->arg });
    $worker->work while 1;
}
my $client = Gearman::Client->new(job_servers => [$server], prefix => $prefix);
my $result = $client->do_task($function, \$data);
print defined $result ? $$result : 'failed';
