//! Manual pages and shell completions, made from the options.

use clap::CommandFactory;
use clap::ValueEnum;
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the completions of a shell
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Print the manual page of neap, or write that of each command into a folder
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// Folder for neap.1, neap-ss.1 and so on, and for completions in `completions`
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

fn done(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("neap: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `neap completions`
pub(crate) fn completions<C: CommandFactory>(args: &CompletionsArgs) -> ExitCode {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "neap", &mut out);
    done(io::stdout().write_all(&out))
}

/// `neap man`
pub(crate) fn man<C: CommandFactory>(args: &ManArgs) -> ExitCode {
    done(match &args.folder {
        None => Man::new(C::command()).render(&mut io::stdout()),
        Some(folder) => write_all::<C>(folder),
    })
}

fn write_all<C: CommandFactory>(folder: &PathBuf) -> io::Result<()> {
    let completions = folder.join("completions");
    std::fs::create_dir_all(&completions)?;
    // Hidden commands have no page.
    clap_mangen::generate_to(C::command(), folder)?;
    for &shell in Shell::value_variants() {
        clap_complete::generate_to(shell, &mut C::command(), "neap", &completions)?;
    }
    Ok(())
}
