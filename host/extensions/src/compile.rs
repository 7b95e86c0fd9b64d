//! Compilation in another process that limits itself, can be killed, and leaves nothing behind.
//!
//! The parent runs [`CompilerCommand`] and writes a job to its standard input; the child is the
//! same program entering [`compile_child_main`]. It writes one file: the code, or the reasons why
//! there is none. Standard output is not used, so a test binary can be the child too.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::engine::compiling_engine;
use crate::error::AdmissionError;
use crate::limits::{CompileLimits, RunLimits, ScanLimits};
use crate::scan::{Shape, scan};

/// The file holds reasons (a JSON list), not code.
const EXIT_REFUSED: i32 = 10;

/// The job was not understood: parent and child are different programs.
const EXIT_BAD_JOB: i32 = 11;

/// The child found no way to write its answer.
const EXIT_NO_OUTPUT: i32 = 12;

/// Bytes of a job's header, and of reasons.
const MAX_HEADER_BYTES: u64 = 64 << 10;

/// How often the parent looks whether the child has ended.
const POLL: Duration = Duration::from_millis(2);

/// How to start this program as a compiler.
#[derive(Debug, Clone)]
pub struct CompilerCommand {
    /// The executable, an absolute path.
    pub program: PathBuf,
    /// What leads it to [`compile_child_main`].
    pub args: Vec<OsString>,
}

impl CompilerCommand {
    /// The running executable with the argument `__compile`.
    ///
    /// # Errors
    /// When the system does not tell which executable this is.
    pub fn current_exe() -> io::Result<Self> {
        Ok(CompilerCommand { program: std::env::current_exe()?, args: vec!["__compile".into()] })
    }
}

/// What the child is told, before the bytes.
#[derive(Serialize, Deserialize)]
struct Job {
    out: PathBuf,
    memory_bytes: u64,
    cpu_s: u64,
    output_bytes: u64,
    stack_bytes: usize,
    scan: ScanLimits,
}

/// Runs one compilation at a time; a bounded number waits.
#[derive(Debug)]
pub(crate) struct Compiler {
    command: CompilerCommand,
    limits: CompileLimits,
    turn: Mutex<()>,
    num_waiting: AtomicUsize,
}

impl Compiler {
    pub(crate) fn new(command: CompilerCommand, limits: CompileLimits) -> Self {
        Compiler { command, limits, turn: Mutex::new(()), num_waiting: AtomicUsize::new(0) }
    }

    /// Compiles `wasm` into a new file at `out`.
    ///
    /// # Errors
    /// The component's fault, too many waiting, or the system's.
    pub(crate) fn compile(
        &self,
        wasm: &[u8],
        out: &Path,
        scan: &ScanLimits,
        run: &RunLimits,
    ) -> Result<(), AdmissionError> {
        let num_waiting = self.num_waiting.fetch_add(1, Ordering::SeqCst);
        let result = if num_waiting > self.limits.num_waiting {
            Err(AdmissionError::Busy { num_waiting })
        } else {
            // A panic in another turn left nothing half-done: the lock guards no data.
            let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            self.take_turn(wasm, out, scan, run)
        };
        self.num_waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn take_turn(
        &self,
        wasm: &[u8],
        out: &Path,
        scan: &ScanLimits,
        run: &RunLimits,
    ) -> Result<(), AdmissionError> {
        let server = |why: String| AdmissionError::Server { why };
        let job = Job {
            out: out.to_path_buf(),
            memory_bytes: self.limits.memory_bytes,
            cpu_s: self.limits.cpu_s,
            output_bytes: self.limits.output_bytes,
            stack_bytes: run.stack_bytes,
            scan: scan.clone(),
        };
        let header = serde_json::to_vec(&job).map_err(|error| server(error.to_string()))?;
        let program = self.command.program.display().to_string();
        let mut child = Command::new(&self.command.program)
            .args(&self.command.args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| server(format!("`{program}` does not start: {error}")))?;
        let stdin = child.stdin.take();
        let (fed, status) = std::thread::scope(|scope| {
            // A child that does not read is killed at its deadline, which ends this thread too.
            let feeder = scope.spawn(|| feed(stdin, &header, wasm));
            let status = wait(&mut child, self.limits.wall);
            let fed = feeder.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            (fed, status)
        });
        let status =
            status.map_err(|error| server(format!("cannot wait for `{program}`: {error}")))?;
        match status {
            Some(status) if status.success() => {
                // A child that ended well has read its whole job.
                fed.map_err(|error| server(format!("`{program}` did not read its job: {error}")))
            }
            Some(status) if status.code() == Some(EXIT_REFUSED) => {
                Err(AdmissionError::Refused { reasons: read_reasons(out).map_err(server)? })
            }
            Some(status) => Err(judge(status, &program, &self.limits)),
            None => Err(AdmissionError::refused(format!(
                "compiling it took longer than {} s; make it smaller",
                self.limits.wall.as_secs()
            ))),
        }
    }
}

/// Writes the job and closes the pipe.
fn feed(stdin: Option<ChildStdin>, header: &[u8], wasm: &[u8]) -> io::Result<()> {
    let mut stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
    let length = u32::try_from(header.len()).map_err(io::Error::other)?;
    stdin.write_all(&length.to_le_bytes())?;
    stdin.write_all(header)?;
    stdin.write_all(wasm)
}

/// The child's status; none: it was killed after `wall`. On an error it was killed, too.
fn wait(child: &mut Child, wall: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + wall;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => break Ok(None),
            Err(error) => break Err(error),
        }
    };
    child.kill()?;
    child.wait()?;
    status
}

fn read_reasons(out: &Path) -> Result<Vec<String>, String> {
    let mut text = String::new();
    let file = File::open(out).map_err(|error| format!("no reasons were left: {error}"))?;
    file.take(MAX_HEADER_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("the reasons are no JSON: {error}"))
}

/// What an abnormal end says.
fn judge(status: ExitStatus, program: &str, limits: &CompileLimits) -> AdmissionError {
    const SIGABRT: i32 = 6;
    const SIGKILL: i32 = 9;
    const SIGSEGV: i32 = 11;
    const SIGXCPU: i32 = 24;
    const SIGXFSZ: i32 = 25;
    let mib = limits.memory_bytes >> 20;
    match (status.code(), status.signal()) {
        (_, Some(SIGXCPU | SIGKILL)) => AdmissionError::refused(format!(
            "compiling it took more than {} s of CPU; make it smaller",
            limits.cpu_s
        )),
        (_, Some(SIGABRT | SIGSEGV)) => AdmissionError::refused(format!(
            "compiling it took more than {mib} MiB of memory; make it smaller"
        )),
        (_, Some(SIGXFSZ)) => AdmissionError::refused(format!(
            "it compiles to more than {} MiB of code; make it smaller",
            limits.output_bytes >> 20
        )),
        (Some(101), _) => {
            AdmissionError::refused("the compiler gave up on it; rebuild it with another toolchain")
        }
        _ => AdmissionError::Server {
            why: format!(
                "`{program}` ended with {status}; it must be an executable of this version whose \
                 arguments lead to the compiler"
            ),
        },
    }
}

/// The child's whole life: limits itself, reads a job from standard input, writes its answer.
/// Called by whatever [`CompilerCommand`] starts, before anything else; never returns.
pub fn compile_child_main() -> ! {
    std::process::exit(match child() {
        Ok(()) => 0,
        Err(code) => code,
    })
}

fn child() -> Result<(), i32> {
    let (job, wasm) = read_job().map_err(|_| EXIT_BAD_JOB)?;
    limit_self(&job).map_err(|_| EXIT_BAD_JOB)?;
    let (bytes, code) = match compile(&wasm, &job) {
        Ok(code) => (code, Ok(())),
        Err(reasons) => {
            let text = serde_json::to_vec(&reasons).map_err(|_| EXIT_NO_OUTPUT)?;
            (text, Err(EXIT_REFUSED))
        }
    };
    write_new(&job.out, &bytes).map_err(|_| EXIT_NO_OUTPUT)?;
    code
}

fn read_job() -> io::Result<(Job, Vec<u8>)> {
    let mut input = io::stdin().lock();
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let mut header = Vec::new();
    let length = u64::from(u32::from_le_bytes(length)).min(MAX_HEADER_BYTES);
    input.by_ref().take(length).read_to_end(&mut header)?;
    let job: Job = serde_json::from_slice(&header)?;
    let mut wasm = Vec::new();
    input.take(job.scan.wasm_bytes as u64 + 1).read_to_end(&mut wasm)?;
    Ok((job, wasm))
}

/// Only the pre-scan's parent has touched the bytes so far; from here on they are at work.
fn limit_self(job: &Job) -> rustix::io::Result<()> {
    let hard = |value: u64| Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(Resource::As, hard(job.memory_bytes))?;
    // The soft limit names its cause (SIGXCPU); the hard one is for who ignores that.
    setrlimit(Resource::Cpu, Rlimit { current: Some(job.cpu_s), maximum: Some(job.cpu_s + 1) })?;
    setrlimit(Resource::Fsize, hard(job.output_bytes))?;
    setrlimit(Resource::Core, hard(0))
}

fn compile(wasm: &[u8], job: &Job) -> Result<Vec<u8>, Vec<String>> {
    let wrapped;
    let component = match scan(wasm, &job.scan)? {
        Shape::Component => wasm,
        Shape::CoreModule => {
            wrapped = wrap(wasm).map_err(|why| vec![why])?;
            scan(&wrapped, &job.scan)?;
            &wrapped
        }
    };
    let run = RunLimits { stack_bytes: job.stack_bytes, ..RunLimits::default() };
    let engine = compiling_engine(&run).map_err(|error| vec![format!("{error:#}")])?;
    engine.precompile_component(component).map_err(|error| {
        vec![format!(
            "it is not valid here: {error:#}; only WebAssembly 2.0 with SIMD and the component \
             model are enabled, so build without newer proposals"
        )]
    })
}

/// A core module and its component-type section become a component.
fn wrap(module: &[u8]) -> Result<Vec<u8>, String> {
    let mut encoder = wit_component::ComponentEncoder::default();
    encoder.validate(true).module(module).and_then(|encoder| encoder.encode()).map_err(|error| {
        format!("it is a core module that cannot be made a component: {error:#}; wrap it yourself")
    })
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Deletes what a compilation left at `path`; it may have left nothing.
pub(crate) fn discard(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot delete a partial file");
    }
}
