# Questions and answers in datagrams.
#
#   perl datagrams.pl serve ADDRESS PORT    answers each datagram
#   perl datagrams.pl ask ADDRESS PORT      asks, and prints the addresses that the server sees
#
# An answer is the address of its client, and the question backwards.
use strict;
use warnings;
use IO::Select;
use IO::Socket::IP;

my ($work, $address, $port) = @ARGV;

if ($work eq "serve") {
    my $socket = IO::Socket::IP->new(
        Proto => "udp", LocalHost => $address, LocalPort => $port, V6Only => 0,
    ) or die "$address $port: $@";
    while (1) {
        $socket->recv(my $question, 65535) // next;
        my $client = $socket->peerhost;
        $client =~ s/^::ffff://;
        $socket->send("$client\n" . reverse $question);
    }
}

my $socket = IO::Socket::IP->new(Proto => "udp", PeerHost => $address, PeerPort => $port)
    or die "$address $port: $@";
my $select = IO::Select->new($socket);
my %seen;

# Asks until there is an answer: a datagram may be lost, and a server may not run yet.
sub answered {
    my ($question) = @_;
    for (1 .. 300) {
        # An error of an earlier datagram is reported here, and that the port is closed.
        $socket->send($question) // $socket->send($question);
        while ($select->can_read(0.2)) {
            $socket->recv(my $answer, 65535) // next;
            my ($client, $text) = split /\n/, $answer, 2;
            # The answer to what was asked before is late.
            next if $text ne reverse $question;
            $seen{$client} = 1;
            return;
        }
    }
    die "no answer to a question of " . length($question) . " bytes\n";
}

# Some of them are fragments, at every MTU from the third of these on and at 65520 for the last one.
for my $length ((1 .. 200), 1400, 1473, 9000, 40000, 65400) {
    answered("$length," . "0123456789" x ($length / 10));
}
print join(" ", sort keys %seen), "\n";
