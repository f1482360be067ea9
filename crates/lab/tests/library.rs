//! Each scenario that neap brings along shows what it says.

use neap_lab::library::{FILES, SCENARIOS};
use neap_lab::scenario::Experiment;

fn check(name: &str) {
    let files = |name: &str| {
        let file = FILES.iter().find(|(own, _)| *own == name);
        file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
    };
    let builtin = SCENARIOS.iter().find(|builtin| builtin.name == name).expect("a scenario");
    let experiment = Experiment::parse(name, builtin.text, &files).expect("a sound scenario");
    let run = |choice| experiment.run(choice, &|_| {}).expect("a run").figures;
    let runs: Vec<_> =
        experiment.choices().iter().map(|choice| (choice.clone(), run(choice))).collect();
    let verdicts = experiment.judge(&runs).expect("figures that exist");
    assert!(!verdicts.is_empty(), "{name} expects nothing");
    for verdict in verdicts {
        assert!(verdict.holds, "{name}: {}", verdict.text);
    }
}

macro_rules! scenarios {
    ($($test:ident: $name:literal,)+) => {
        $(#[test]
        fn $test() {
            check($name);
        })+
    };
}

scenarios! {
    a_deep_buffer_hurts_a_game: "bufferbloat",
    a_low_water_mark_lets_urgent_messages_pass: "priority-inversion",
    aggregates_need_data_below_the_socket: "wifi",
    late_completions_cost_nothing: "late-completions",
    early_completions_fill_a_ring_without_byte_queue_limits: "early-completions",
    shared_timers_expire_for_many_flows_however_a_card_interrupts: "interrupt-moderation",
    a_policer_loses_without_delay: "policer",
    bbr_and_cubic_share_by_the_buffer: "sharing",
    late_acks_slow_a_download: "ack-congestion",
    a_cellular_link_queues_when_its_rate_falls: "lte",
    marks_spare_an_incast_losses: "incast",
    short_flows_get_through: "short-flows",
    sysctls_act_on_flows_that_run: "running-sysctls",
}
