//! `neap ss`: the sockets of running stacks, as iproute2's `ss` prints those of the kernel.

mod detail;
mod filter;
mod hosts;
mod services;
mod states;
mod table;

use crate::stacks::{self, Failure, Stacks};
use clap::Args as ClapArgs;
use filter::{Asked, Filter};
use hosts::Family;
use neap::control::{Endpoint, SocketReport, StackReport};
use serde_json::Value;
use services::Services;
use states::States;
use std::process::ExitCode;
use table::{Row, Table};

/// Show the sockets of running stacks, as ss does those of the kernel
///
/// Without options it shows all connections of TCP and UDP, and all pings, of all stacks of this
/// user. The filter is that of ss: states, then an expression of `src`, `dst`, `sport`, `dport`,
/// `dev`, comparisons, `and`, `or`, `not` and parentheses, from left to right. For example:
/// `neap ss -tn state established dport = :443`, `neap ss -ti '( sport gt 1024 or dst 10/8 )'`.
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// Sockets of TCP
    #[arg(short, long)]
    tcp: bool,
    /// Sockets of UDP, and the ports outside that a gateway has for those of its guests
    #[arg(short, long)]
    udp: bool,
    /// Pings that a gateway passes on, with identifiers for ports; ss shows raw sockets
    #[arg(short = 'w', long)]
    raw: bool,
    /// Only listening sockets
    #[arg(short, long)]
    listening: bool,
    /// Listening sockets and all others
    #[arg(short, long)]
    all: bool,
    /// What a connection does: TCP_INFO, why it is not sending, where its bytes are, and where a
    /// gateway relays it to, with the bytes there and what they wait for
    #[arg(short, long)]
    info: bool,
    /// Memory of each socket
    #[arg(short, long)]
    memory: bool,
    /// Numbers of ports instead of names of services
    #[arg(short, long)]
    numeric: bool,
    /// User and number of each socket
    #[arg(short, long)]
    extended: bool,
    /// Timer of each socket
    #[arg(short, long)]
    options: bool,
    /// Process of each socket
    #[arg(short, long)]
    processes: bool,
    /// Only IPv4
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Only IPv6
    #[arg(short = '6', long)]
    ipv6: bool,
    /// No header
    #[arg(short = 'H', long)]
    no_header: bool,
    /// All of a socket in one line
    #[arg(short = 'O', long)]
    oneline: bool,
    /// Print JSON: a list of sockets, in nanoseconds, bytes and bytes per second
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    stacks: Stacks,
    /// `state STATE`, `exclude STATE`, and an expression
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

impl Args {
    /// How many kinds of sockets are asked for. Without any it is for all of them.
    fn kinds(&self) -> usize {
        [self.tcp, self.udp, self.raw].into_iter().filter(|&is_asked| is_asked).count()
    }
}

pub(crate) fn main(args: &Args) -> ExitCode {
    match print(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("ss"),
    }
}

/// Which sockets are shown.
struct Choice {
    states: States,
    family: Option<Family>,
    filter: Filter,
}

impl Choice {
    fn of(args: &Args, services: &Services) -> Result<Self, Failure> {
        let text = args.filter.join(" ");
        let asked = filter::parse(&text, services).map_err(Failure::Arguments)?;
        let Asked { states, family, filter } = asked;
        let usual = match (args.all, args.listening) {
            (true, _) => States::ALL,
            (_, true) => States::LISTENING,
            _ => States::CONNECTED,
        };
        let usual_family = match (args.ipv4, args.ipv6) {
            (true, _) => Some(Family::V4),
            (_, true) => Some(Family::V6),
            _ => None,
        };
        let family = family.or(usual_family);
        Ok(Self { states: states.unwrap_or(usual), family, filter })
    }

    fn takes(&self, args: &Args, socket: &SocketReport) -> bool {
        let protocol = match socket.netid.as_str() {
            "tcp" => args.tcp,
            "icmp" | "icmp6" => args.raw,
            _ => args.udp,
        };
        (protocol || args.kinds() == 0)
            && self.family.is_none_or(|family| family.has(socket.local.ip()))
            && self.states.contains(&socket.state)
            && self.filter.matches(socket)
    }
}

fn print(args: &Args) -> Result<(), Failure> {
    let services = Services::read();
    let choice = Choice::of(args, &services)?;
    let (mut answers, silent) = args.stacks.ask(Endpoint::sockets)?;
    for (_, sockets) in &mut answers {
        sockets.retain(|socket| choice.takes(args, socket));
    }
    if args.json {
        print_json(&answers)?;
        return silent.tell();
    }
    let are_several = answers.len() > 1;
    let mut text = String::new();
    for (stack, sockets) in &answers {
        if are_several {
            text += &format!("{}\n", stacks::title(stack));
        }
        let has_netid = args.kinds() != 1;
        let mut table = Table::new(has_netid, !choice.states.is_single(), !args.no_header);
        for socket in sockets {
            table.add(row(args, stack, socket, &services));
        }
        text += &table.to_string();
    }
    stacks::print(&text)?;
    silent.tell()
}

fn row(args: &Args, stack: &StackReport, socket: &SocketReport, services: &Services) -> Row {
    let port = |port: u16| match (port, args.numeric) {
        (0, _) => "*".to_owned(),
        (port, true) => port.to_string(),
        (port, false) => services.name(port, &socket.netid),
    };
    let mut process = Vec::new();
    if args.processes {
        process.push(format!("users:((\"{}\",pid={}))", stack.program, stack.pid));
    }
    if args.options
        && let Some(timer) = &socket.timer
    {
        process.push(detail::timer(timer));
    }
    if args.extended {
        process.push(detail::extended(stack, socket));
    }
    let mut below = Vec::new();
    if args.memory
        && let Some(memory) = &socket.memory
    {
        below.push(detail::memory(memory));
    }
    if args.info
        && let Some(tcp) = &socket.tcp
    {
        below.push(detail::tcp(tcp));
        match &socket.relay {
            Some(relay) => below.push(detail::relay(relay)),
            // A stack of an earlier version says no more.
            None => below.extend(socket.far.map(|far| format!("far:{far}"))),
        }
    }
    if args.info
        && let Some(mapping) = &socket.mapping
    {
        below.push(detail::mapping(mapping));
    }
    if args.oneline {
        process.append(&mut below);
    }
    let any = if socket.local.is_ipv6() && !socket.dual { "[::]" } else { "0.0.0.0" };
    let any = if socket.dual { "*" } else { any };
    Row {
        netid: socket.netid.clone(),
        state: socket.state.clone(),
        recv_q: socket.recv_q,
        send_q: socket.send_q,
        local: (table::host(socket.local.ip(), socket.dual), port(socket.local.port())),
        peer: match socket.remote {
            Some(peer) => (table::host(peer.ip(), false), port(peer.port())),
            None => (any.to_owned(), "*".to_owned()),
        },
        process: process.join(" "),
        below: below.join(" "),
    }
}

fn print_json(answers: &[(StackReport, Vec<SocketReport>)]) -> Result<(), Failure> {
    let mut all = Vec::new();
    for (stack, sockets) in answers {
        for socket in sockets {
            // Reports were JSON before.
            let Ok(Value::Object(mut fields)) = serde_json::to_value(socket) else { continue };
            fields.insert("pid".to_owned(), stack.pid.into());
            fields.insert("stack".to_owned(), stack.name.clone().into());
            all.push(Value::Object(fields));
        }
    }
    stacks::print(&format!("{}\n", Value::Array(all)))
}
