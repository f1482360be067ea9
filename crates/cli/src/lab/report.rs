//! What a run leaves for people: a page with plots (`--html`), and packets for Wireshark
//! (`--pcapng`).

use neap_lab::link::ENDS;
use neap_lab::report::{Case, Observed, Page, Recording};
use neap_lab::scenario::{Experiment, Figures, Run, Verdict};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One experiment on the page of plain `neap lab`.
pub(super) struct Section<'a> {
    pub(super) title: &'a str,
    pub(super) introduction: &'a str,
    /// Head and rows.
    pub(super) table: (Vec<String>, Vec<Vec<String>>),
    /// And whether they hold.
    pub(super) verdicts: Vec<(&'a str, bool)>,
    /// The runs that are drawn.
    pub(super) cases: Vec<(String, &'a Recording)>,
}

/// One page about experiments.
pub(super) fn front_page(sections: &[Section<'_>]) -> String {
    let mut page = Page::new("neap lab: TCP without the queue");
    for section in sections {
        page.heading(section.title);
        page.text(section.introduction);
        let (head, rows) = &section.table;
        page.table(&head.iter().map(String::as_str).collect::<Vec<_>>(), rows);
        page.verdicts(section.verdicts.iter().copied());
        let cases = section.cases.iter();
        let cases = cases.map(|(name, recording)| Case { name: name.clone(), recording });
        page.cases(&cases.collect::<Vec<_>>());
    }
    page.finish()
}

/// One page about one run.
pub(super) fn page(
    experiment: &Experiment<'_>,
    name: &str,
    run: &Run,
    verdicts: &[Verdict],
) -> String {
    let scenario = experiment.scenario();
    let mut page = Page::new(&scenario.about);
    page.text(&format!("{name}; hash of the run {}", run.hash));
    if let Some(look_at) = &scenario.look_at {
        page.text(&format!("Look at: {look_at}"));
    }
    page.verdicts(verdicts.iter().map(|verdict| (verdict.text.as_str(), verdict.holds)));
    page.heading("Over time");
    if let Some(recording) = &run.recording {
        page.cases(&[Case { name: String::new(), recording }]);
    }
    page.heading("Figures");
    page.table(&["figure", "value"], &rows(&run.figures));
    page.finish()
}

fn rows(figures: &Figures) -> Vec<Vec<String>> {
    let shown = figures.iter().filter(|(_, value)| **value != 0.0);
    let row = |(name, value): (&String, &f64)| {
        let digits = if value.fract() == 0.0 { 0 } else { 3 };
        vec![name.clone(), format!("{value:.digits$}")]
    };
    shown.map(row).collect()
}

type Writer = PcapNgWriter<BufWriter<File>>;

/// A file of packets per link.
pub(super) struct Packets {
    writers: BTreeMap<String, Writer>,
    failure: Option<Box<dyn Error>>,
}

/// The file of a link: what was asked for if it is the only link, else with the link's name.
fn path_of(path: &Path, link: &str, is_only: bool) -> PathBuf {
    if is_only {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{link}."));
    name.push(path.extension().unwrap_or("pcapng".as_ref()));
    path.with_file_name(name)
}

impl Packets {
    /// Makes the files; each has one interface per end of its link.
    pub(super) fn create(path: &Path, experiment: &Experiment<'_>) -> Result<Self, Box<dyn Error>> {
        let links = &experiment.scenario().link;
        let mut writers = BTreeMap::new();
        for (name, link) in links {
            let path = path_of(path, name, links.len() == 1);
            let file = File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let mut writer =
                PcapNgWriter::with_endianness(BufWriter::new(file), Endianness::Little)?;
            for end in link.get_ref().ends.iter() {
                let name = format!("{name} from {}", end.get_ref());
                let options = vec![
                    InterfaceDescriptionOption::IfName(name.into()),
                    // Times are nanoseconds.
                    InterfaceDescriptionOption::IfTsResol(9),
                ];
                let linktype = DataLink::RAW;
                writer.write_pcapng_block(InterfaceDescriptionBlock {
                    linktype,
                    snaplen: 0,
                    options,
                })?;
            }
            writers.insert(name.clone(), writer);
        }
        Ok(Self { writers, failure: None })
    }

    /// Writes one packet: its headers and, as a comment, the state of its flow.
    pub(super) fn write(&mut self, packet: &Observed<'_>) {
        let Some(writer) = self.writers.get_mut(packet.link) else { return };
        let comment = (!packet.comment.is_empty())
            .then(|| EnhancedPacketOption::Comment(packet.comment.into()));
        debug_assert!(packet.end < ENDS);
        let block = EnhancedPacketBlock {
            interface_id: packet.end as u32,
            timestamp: Duration::from_nanos(packet.at.as_nanos()),
            original_len: packet.len,
            data: packet.headers.into(),
            options: comment.into_iter().collect(),
        };
        if let Err(error) = writer.write_pcapng_block(block) {
            self.failure.get_or_insert(Box::new(error));
        }
    }

    /// The first error, if there was one.
    pub(super) fn finish(self) -> Result<(), Box<dyn Error>> {
        for writer in self.writers.into_values() {
            writer.into_inner().into_inner().map_err(std::io::IntoInnerError::into_error)?;
        }
        self.failure.map_or(Ok(()), Err)
    }
}
