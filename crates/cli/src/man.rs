//! Manual pages and shell completions, made from the options.

use crate::{pasta, slirp4netns};
use clap::{Command, CommandFactory, ValueEnum};
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
    /// Name by which neap is called: its own, or that of a link to it
    #[arg(default_value = NEAP, value_parser = NAMES)]
    name: String,
}

/// Print the manual page of neap, or write that of each command into a folder
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// Folder for neap.1, neap-ss.1 and so on, and for completions in `completions`
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

const NEAP: &str = "neap";

/// Names by which the program may be called. Those of links are names of commands.
const NAMES: [&str; 3] = [NEAP, pasta::NAME, slirp4netns::NAME];

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
    clap_complete::generate(args.shell, &mut called::<C>(&args.name), &args.name, &mut out);
    done(io::stdout().write_all(&out))
}

/// `neap man`
pub(crate) fn man<C: CommandFactory>(args: &ManArgs) -> ExitCode {
    done(match &args.folder {
        None => Man::new(program::<C>()).render(&mut io::stdout()),
        Some(folder) => write_all::<C>(folder),
    })
}

fn write_all<C: CommandFactory>(folder: &PathBuf) -> io::Result<()> {
    let completions = folder.join("completions");
    std::fs::create_dir_all(&completions)?;
    // Hidden commands have no page.
    clap_mangen::generate_to(program::<C>(), folder)?;
    for &shell in Shell::value_variants() {
        for name in NAMES {
            clap_complete::generate_to(shell, &mut called::<C>(name), name, &completions)?;
        }
    }
    Ok(())
}

/// The program with the options of slirp4netns, which that command reads by itself.
fn program<C: CommandFactory>() -> Command {
    C::command().mut_subcommands(|command| match command.get_name() {
        slirp4netns::NAME => {
            let about = command.get_about().cloned().unwrap_or_default();
            slirp4netns::command().about(about)
        }
        _ => command,
    })
}

/// What can be completed behind one of [`NAMES`].
fn called<C: CommandFactory>(name: &str) -> Command {
    let program = shown(&program::<C>());
    program.find_subcommand(name).cloned().unwrap_or(program)
}

/// A command without what is hidden, which completions would offer.
fn shown(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let shown = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(arguments.cloned())
        .subcommands(commands.map(self::shown))
        .disable_help_flag(command.is_disable_help_flag_set())
        // An option of the command's own may print it.
        .disable_version_flag(command.is_disable_version_flag_set());
    match command.get_version() {
        Some(version) => shown.version(version.to_owned()),
        None => shown,
    }
}
