//! What a run leaves for Wireshark: its packets (`--pcapng`).

use super::output::{OutputError, OutputFile};
use neap_lab::link::ENDS;
use neap_lab::report::Observed;
use neap_lab::scenario::Scenario;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, PcapError};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

/// A file of packets. Each run has an interface for each end of each of its links.
pub(super) struct Packets {
    path: PathBuf,
    writer: PcapNgWriter<BufWriter<File>>,
    /// Interfaces that the file has.
    interfaces: u32,
    /// First interface of each link of the run that is captured.
    links: BTreeMap<String, u32>,
    /// What was run, in words, in the order of the file.
    runs: Vec<String>,
    failure: Option<PcapError>,
}

impl Packets {
    /// Begins the file.
    pub(super) fn create(output: OutputFile) -> Result<Self, OutputError> {
        let (path, file) = output.begin()?;
        let writer = PcapNgWriter::with_endianness(BufWriter::new(file), Endianness::Little);
        let writer = writer.map_err(|error| OutputError::new(&path, reason(error)))?;
        Ok(Self {
            path,
            writer,
            interfaces: 0,
            links: BTreeMap::new(),
            runs: Vec::new(),
            failure: None,
        })
    }

    /// The packets that follow are those of a run of `scenario`, which is called `name`. The names
    /// of its interfaces begin with `run`.
    pub(super) fn begin_run(&mut self, run: &str, name: String, scenario: &Scenario) {
        self.links.clear();
        self.runs.push(name);
        for (name, link) in &scenario.link {
            self.links.insert(name.clone(), self.interfaces);
            for end in link.get_ref().ends.iter() {
                let name = format!("{run}{name} from {}", end.get_ref());
                let options = vec![
                    InterfaceDescriptionOption::IfName(name.into()),
                    // Times are nanoseconds.
                    InterfaceDescriptionOption::IfTsResol(9),
                ];
                let linktype = DataLink::RAW;
                let block = InterfaceDescriptionBlock { linktype, snaplen: 0, options };
                let written = self.writer.write_pcapng_block(block);
                self.note(written);
                self.interfaces += 1;
            }
        }
    }

    /// Writes one packet: its headers and, as a comment, the state of its flow.
    pub(super) fn write(&mut self, packet: &Observed<'_>) {
        let Some(first) = self.links.get(packet.link) else { return };
        let comment = (!packet.comment.is_empty())
            .then(|| EnhancedPacketOption::Comment(packet.comment.into()));
        debug_assert!(packet.end < ENDS);
        let block = EnhancedPacketBlock {
            interface_id: first + packet.end as u32,
            timestamp: Duration::from_nanos(packet.at.as_nanos()),
            original_len: packet.len,
            data: packet.headers.into(),
            options: comment.into_iter().collect(),
        };
        let written = self.writer.write_pcapng_block(block);
        self.note(written);
    }

    /// Keeps the first error.
    fn note(&mut self, written: Result<usize, PcapError>) {
        if let Err(error) = written {
            self.failure.get_or_insert(error);
        }
    }

    /// Completes the file, and says on standard error what is in it.
    ///
    /// # Errors
    /// The first error of all that was written.
    pub(super) fn finish(self) -> Result<(), OutputError> {
        let Self { path, writer, failure, runs, interfaces, .. } = self;
        let written = match failure {
            Some(error) => Err(reason(error)),
            None => writer.into_inner().flush(),
        };
        written.map_err(|why| OutputError::new(&path, why))?;
        let (path, runs) = (path.display(), runs.join(", then "));
        eprintln!(
            "wrote {path}: packets of {runs}; {interfaces} interfaces, one for each end of a link"
        );
        Ok(())
    }
}

fn reason(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
