//! Options that all gateways have, and those that the faces of other programs have as well.

use super::{Failure, raise_file_limit};
use clap::{ArgAction, Args};
use ipnet::IpNet;
use neap::time::Rate;
use neap_gateway::{GatewayConfig, Policy};
use std::net::IpAddr;

/// Most bytes of an IP packet, the MTU of sandboxes: fewer packets for the same bytes.
pub(super) const MTU: u16 = 65520;

#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    limits: Limits,
    /// Let flows reach addresses of this host that others cannot: 127.0.0.0/8, ::1, 0.0.0.0/8, ::
    /// and 169.254.0.0/16
    #[arg(long)]
    allow_host: bool,
}

/// What flows may reach, how many there are, and how much they send.
#[derive(Args, Clone, Debug)]
pub(crate) struct Limits {
    /// Let flows reach a prefix inside of a denied one; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = prefix, action = ArgAction::Append)]
    allow: Vec<IpNet>,
    /// Keep flows from a prefix; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = prefix, action = ArgAction::Append)]
    deny: Vec<IpNet>,
    /// Most TCP connections at the same time; those that are opened beyond are refused [default:
    /// three quarters of what the limit of descriptors allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    flows: Option<u32>,
    /// Rate of what is sent, such as 19mbit: somewhat below that of the uplink, so that packets
    /// wait here, and those of flows that send little do not
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Rate>,
    /// Rate of what is received
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate_in: Option<Rate>,
}

/// The lowest rate: an MTU of Ethernet takes more than a second.
const LOWEST_RATE: Rate = Rate::from_kbit(8);

fn rate(text: &str) -> Result<Rate, String> {
    let expected = "expected a rate of at least 8kbit, such as 19mbit";
    text.parse().ok().filter(|&rate| rate >= LOWEST_RATE).ok_or_else(|| expected.to_owned())
}

fn prefix(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    let parsed = text.parse::<IpNet>().or_else(|_| address());
    parsed.map_err(|_| "expected a prefix, such as 192.168.0.0/16 or fd00::/8".to_owned())
}

impl Options {
    /// The settings of the engine.
    pub(super) fn config(&self) -> Result<GatewayConfig, Failure> {
        let mut config = GatewayConfig::default();
        config.policy = if self.allow_host { Policy::default() } else { Policy::without_host() };
        let allowed = raise_file_limit().map_err(Failure::System)?;
        self.limits.apply(&mut config, allowed).map_err(Failure::Arguments)?;
        Ok(config)
    }
}

impl Limits {
    /// Adds what the user denies and allows to a policy.
    pub(crate) fn add_to(&self, policy: &mut Policy) {
        self.deny.iter().for_each(|&prefix| policy.deny(prefix));
        self.allow.iter().for_each(|&prefix| policy.allow(prefix));
    }

    /// Sets them, with so many descriptors for flows. What the policy says already holds besides.
    /// Without a number connections leave a quarter of the descriptors for datagrams and pings.
    ///
    /// # Errors
    /// One line: there are more flows than descriptors.
    pub(crate) fn apply(&self, config: &mut GatewayConfig, allowed: usize) -> Result<(), String> {
        self.add_to(&mut config.policy);
        (config.rate, config.rate_in) = (self.rate, self.rate_in);
        config.most_flows = match self.flows {
            Some(flows) if flows as usize > allowed => {
                return Err(format!(
                    "--flows {flows}: the limit of descriptors allows {allowed} (ulimit -n)"
                ));
            }
            Some(flows) => flows as usize,
            None => allowed / 4 * 3,
        };
        config.most_mappings = allowed / 5 * 4;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        limits: Limits,
    }

    #[test]
    fn connections_have_three_quarters_of_the_descriptors_unless_a_number_is_given() {
        let most = |line: &[&str]| {
            let program = Program::try_parse_from([&["neap"], line].concat()).expect("arguments");
            let mut config = GatewayConfig::default();
            program.limits.apply(&mut config, 1000).map(|()| config.most_flows)
        };
        assert_eq!(most(&[]), Ok(750));
        assert_eq!(most(&["--flows", "1000"]), Ok(1000));
        assert!(most(&["--flows", "1001"]).is_err());
        let help = Program::command().render_long_help().to_string();
        let help: Vec<_> = help.split_whitespace().collect();
        let help = help.join(" ");
        assert!(
            help.contains("[default: three quarters of what the limit of descriptors"),
            "{help}"
        );
    }
}
