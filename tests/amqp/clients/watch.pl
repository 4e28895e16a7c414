# Watches all exchanges of a host and port with AnyEvent::RabbitMQ, prints each message as JSON.
use strict;
use warnings;

use AnyEvent;
use AnyEvent::RabbitMQ;
use JSON::PP;

my ($host, $port, $count) = @ARGV;
my @states = qw(pending running completed failed);
my $done = AnyEvent->condvar;
my $seen = 0;
$| = 1;

sub failed { my ($what) = @_; return sub { $done->croak("$what failed: " . encode_json([map { "$_" } @_])) } }

sub watch {
    my ($channel) = @_;
    $channel->qos(prefetch_count => 10, on_success => sub {
        $channel->declare_queue(exclusive => 1, on_failure => failed('declare'), on_success => sub {
            my $queue = shift->method_frame->queue;
            bind_next($channel, $queue, @states);
        });
    });
}

sub bind_next {
    my ($channel, $queue, $state, @others) = @_;
    return consume($channel, $queue) unless $state;
    $channel->bind_queue(
        queue => $queue, exchange => "task_${state}_v1", routing_key => '*.*.*.*.default.#',
        on_failure => failed('bind'), on_success => sub { bind_next($channel, $queue, @others) });
}

sub consume {
    my ($channel, $queue) = @_;
    $channel->consume(
        queue => $queue, no_ack => 0, on_failure => failed('consume'),
        on_success => sub { print "ready\n" },
        on_consume => sub {
            my ($message) = @_;
            my $method = $message->{deliver}->method_frame;
            my $body = decode_json($message->{body}->payload);
            print encode_json({
                id => $message->{header}->message_id, exchange => $method->exchange,
                routingKey => $method->routing_key, state => $body->{status}{state} }), "\n";
            $channel->ack(delivery_tag => $method->delivery_tag);
            $done->send if ++$seen == $count;
        });
}

my $client = AnyEvent::RabbitMQ->new->load_xml_spec;
$client->connect(
    host => $host, port => $port, user => 'guest', pass => 'guest', vhost => '/', timeout => 60,
    on_failure => failed('connect'), on_close => failed('connection'),
    on_success => sub {
        $client->open_channel(on_failure => failed('channel'), on_close => failed('channel'),
            on_success => \&watch);
    });
$done->recv;
