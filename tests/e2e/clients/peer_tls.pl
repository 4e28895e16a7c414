# Gearman::Client and Gearman::Worker over TLS, as the program of a test.
#   peer_tls.pl work HOST PORT CA CERTIFICATE KEY FUNCTION      serves it in capitals, once
#   peer_tls.pl run HOST PORT CA CERTIFICATE KEY FUNCTION DATA  runs a job, prints its result
use strict;
use warnings;
use Gearman::Client;
use Gearman::Worker;

$| = 1;
my ($mode, $host, $port, $ca, $certificate, $key, $function, $data) = @ARGV;
my $server = {
    host => $host, port => $port, use_ssl => 1,
    ca_file => $ca, cert_file => $certificate, key_file => $key, use_cert => 1,
};

if ($mode eq 'work') {
    my $worker = Gearman::Worker->new(job_servers => [$server]);
    my $done = 0;
    $worker->register_function($function => sub { $done = 1; uc $_[0]->arg });
    $worker->work(stop_if => sub { $done }) until $done;
    exit 0;
}
my $client = Gearman::Client->new(job_servers => [$server]);
my $result = $client->do_task($function, $data);
print defined $result ? $$result : 'failed';
