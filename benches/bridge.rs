//! How a PHP process should wait for a node in another process: on the host's socket with the data plane's frames (as
//! it does), or in a slot in shared memory, with an eventfd that wakes the node and a futex that wakes the caller.
//!
//! `cargo bench --bench bridge` takes under two minutes and prints a table. Both ways end in the same node, a process
//! with a runtime of one thread, and carry the same 64 bytes there and back, encoded and decoded by the same codec.
//! The node answers by itself, or asks an owner in a third process over TCP. What counts is the ratio: the rounds of
//! the two ways alternate.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use ephpm_kv::dataplane::client_blocking::Blocking;
use ephpm_kv::dataplane::link::{Link, LinkEvent, LinkTarget};
use ephpm_kv::dataplane::{Answer, Handler, Limits, Peer, UnixAddr, server};
use ephpm_kv::record::KeyBuf;
use ephpm_kv::wire::hello::{LocalHello, Settings};
use ephpm_kv::wire::message::{Call, Op, Request, Response};
use ephpm_kv::wire::{Frame, decode_frame, decode_request, decode_response, encode_request, encode_response};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

/// Bytes of a request and of a reply.
const FRAME_LEN: usize = 64;

/// Most callers.
const SLOTS: usize = 8;

/// Rounds of each way, and the calls of one round over all callers.
const ROUNDS: usize = 9;
const CALLS: usize = 8_000;
const WARM_UP: usize = 200;

/// Longer than any call takes. Both ways wait with a deadline, since a PHP process does.
const PATIENCE: Duration = Duration::from_secs(5);

const WAYS: [&str; 2] = ["socket", "slot"];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["owner", core] => owner(core),
        ["node", core, name, memory, bell, owner] => node(core, name, memory, bell, owner),
        ["caller", core, node, name, memory, bell, index, calls] => {
            caller(core, node, name, memory, bell, index.parse()?, calls.parse()?)
        }
        _ => measure(),
    }
}

// What is asked and answered.

fn request() -> Request {
    let key = KeyBuf::from_parts(Bytes::from_static(&[b'k'; 35]), 0).expect("a key");
    Request::Call(Call { key, op: Op::Incr { deltas: vec![1], ttl_ms: None } })
}

fn response() -> Response {
    Response::NotOwner { owner: Some("n".repeat(40)), term: 1 }
}

/// Who answers what the node is asked.
enum Answers {
    Itself,
    Owner(Link),
}

impl Answers {
    fn answer(&self, request: &Request) -> Answer {
        match self {
            Self::Itself => Answer::Now(response()),
            Self::Owner(link) => match link.call(request) {
                Ok(call) => Answer::Later(Box::pin(async {
                    call.answer().await.unwrap_or_else(|error| Response::Error(error.to_string()))
                })),
                Err(error) => Answer::Now(Response::Error(error.to_string())),
            },
        }
    }
}

impl Handler for Answers {
    fn connected(&self, _: &Peer) -> Result<(), String> {
        Ok(())
    }

    fn disconnected(&self, _: &Peer) {}

    fn handle(&self, _: &Peer, _: u64, request: Request) -> Answer {
        self.answer(&request)
    }
}

fn hello(node_id: &str) -> LocalHello {
    LocalHello {
        cluster_id: "bench".into(),
        node_id: node_id.into(),
        generation: 1,
        origin: 1,
        address: None,
        client: false,
        settings: Settings { replicas: 2, copy_all_max: 16, slots: 16_384 },
        token: [7; 16],
    }
}

fn limits() -> Limits {
    Limits::new(1 << 20)
}

// Slots in shared memory.

const ASKED: u32 = 1;
const ANSWERED: u32 = 2;

/// One caller's question and its answer.
#[repr(C, align(64))]
struct Slot {
    state: AtomicU32,
    frame: Cell<[u8; FRAME_LEN]>,
}

/// What callers and node share.
#[repr(C)]
struct Memory {
    /// A bit for each slot that the node has not looked at. Who sets the first one rings.
    asked: AtomicU64,
    slots: [Slot; SLOTS],
}

// SAFETY: a frame belongs to the caller, but to the node from ASKED to ANSWERED.
unsafe impl Sync for Slot {}

impl Memory {
    fn map(descriptor: &str) -> Result<&'static Self> {
        let descriptor = inherited(descriptor)?;
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping, never unmapped, of a file as long as `Memory`, for which zeros are valid.
        unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            let start = mmap(std::ptr::null_mut(), size_of::<Self>(), flags, MapFlags::SHARED, &descriptor, 0)?;
            Ok(&*start.cast::<Self>())
        }
    }
}

impl Slot {
    fn put(&self, frame: &[u8]) {
        self.frame.set(frame.try_into().expect("every frame has this length"));
    }

    fn get(&self) -> Result<Frame> {
        let mut bytes = BytesMut::from(&self.frame.get()[..]);
        decode_frame(&mut bytes, FRAME_LEN)?.context("half a frame")
    }

    fn answer(&self, id: u64, response: &Response) {
        let mut out = BytesMut::with_capacity(FRAME_LEN);
        encode_response(id, response, &mut out);
        self.put(&out);
        self.state.store(ANSWERED, Ordering::Release);
        // SAFETY: the word is alive; waking touches nothing else.
        unsafe { libc::syscall(libc::SYS_futex, self.state.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    fn wait(&self, deadline: Instant) -> Result<()> {
        while self.state.load(Ordering::Acquire) != ANSWERED {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no answer");
            let left = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            // SAFETY: word and time are alive during the call.
            unsafe { libc::syscall(libc::SYS_futex, self.state.as_ptr(), libc::FUTEX_WAIT, ASKED, &left) };
        }
        Ok(())
    }
}

/// A descriptor that the parent left open in this process.
fn inherited(number: &str) -> Result<OwnedFd> {
    let number = number.parse()?;
    // SAFETY: every child takes each descriptor once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

// The processes.

fn pin(core: &str) -> Result<()> {
    let Ok(core) = core.parse() else { return Ok(()) };
    // SAFETY: a zeroed set is an empty one, and it is alive during the call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    ensure!(result == 0, "core {core}: {}", std::io::Error::last_os_error());
    Ok(())
}

fn host_socket(name: &str) -> UnixAddr {
    UnixAddr::Abstract(name.as_bytes().to_vec())
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    // The parent hangs up when it ends, however it ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn owner(core: &str) -> Result<()> {
    pin(core)?;
    runtime()?.block_on(async {
        let listener = server::bind("127.0.0.1:0".parse()?).await?;
        say(&listener.local_addr()?.to_string())?;
        let (_stop, stopped) = watch::channel(false);
        server::serve(listener, Arc::new(hello("owner")), limits(), Arc::new(Answers::Itself), stopped).await;
        Ok(())
    })
}

fn node(core: &str, name: &str, memory: &str, bell: &str, owner: &str) -> Result<()> {
    pin(core)?;
    let memory = Memory::map(memory)?;
    runtime()?.block_on(async {
        let answers = Arc::new(match owner.parse() {
            Err(_) => Answers::Itself,
            Ok(address) => {
                let (events, mut heard) = mpsc::unbounded_channel();
                let target = LinkTarget { address, expected_node_id: None };
                let link = Link::spawn(target, Arc::new(hello("node")), limits(), events);
                let first = heard.recv().await;
                ensure!(matches!(first, Some(LinkEvent::Up { .. })), "no link: {first:?}");
                Answers::Owner(link)
            }
        });
        let listener = server::bind_unix(&host_socket(name))?;
        // SAFETY: the AsyncFd owns the descriptor until it is dropped.
        let bell = unsafe { AsyncFd::register(inherited(bell)?) }?;
        tokio::spawn(serve_slots(memory, bell, answers.clone()));
        say(&std::process::id().to_string())?;
        let (_stop, stopped) = watch::channel(false);
        server::serve_unix(listener, Arc::new(hello("node")), limits(), answers, stopped).await;
        Ok(())
    })
}

async fn serve_slots(memory: &'static Memory, bell: AsyncFd<OwnedFd>, answers: Arc<Answers>) -> Result<()> {
    loop {
        // Every write to an eventfd is an edge of its own: it need not be read.
        bell.readable().await?.clear_ready();
        let mut asked = memory.asked.swap(0, Ordering::AcqRel);
        while asked != 0 {
            let slot = &memory.slots[asked.trailing_zeros() as usize];
            asked &= asked - 1;
            let (id, request) = decode_request(slot.get()?)?;
            match answers.answer(&request) {
                Answer::Now(response) => slot.answer(id, &response),
                Answer::Later(later) => drop(tokio::spawn(async move { slot.answer(id, &later.await) })),
                Answer::Nothing => {}
            }
        }
    }
}

fn caller(core: &str, node: &str, name: &str, memory: &str, bell: &str, index: usize, calls: usize) -> Result<()> {
    pin(core)?;
    let (memory, bell) = (Memory::map(memory)?, inherited(bell)?);
    let mut socket =
        Blocking::connect(&host_socket(name), node.parse()?, &hello("node"), limits().frame_max, PATIENCE)?;
    let slot = &memory.slots[index];
    let (mut id, mut out) = (0, BytesMut::new());
    let (request, expected) = (request(), response());
    let mut by_socket = || Ok(socket.call(&request, Instant::now() + PATIENCE)?);
    let mut by_slot = || {
        let deadline = Instant::now() + PATIENCE;
        id += 1;
        out.clear();
        encode_request(id, &request, &mut out);
        slot.put(&out);
        slot.state.store(ASKED, Ordering::Relaxed);
        if memory.asked.fetch_or(1 << index, Ordering::AcqRel) == 0 {
            rustix::io::write(&bell, &1_u64.to_ne_bytes())?;
        }
        slot.wait(deadline)?;
        let (answered, response) = decode_response(slot.get()?)?;
        ensure!(answered == id, "another's answer");
        Ok(response)
    };
    say("ready")?;
    for way in std::io::stdin().lines() {
        let call: &mut dyn FnMut() -> Result<Response> = match &*way? {
            "socket" => &mut by_socket,
            _ => &mut by_slot,
        };
        let mut times = Vec::with_capacity(calls);
        for number in 0..WARM_UP + calls {
            let start = Instant::now();
            let response = call()?;
            let took = start.elapsed();
            ensure!(response == expected, "{response:?}");
            if number >= WARM_UP {
                times.push(u32::try_from(took.as_nanos())?);
            }
        }
        let bytes: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
        std::io::stdout().write_all(&bytes)?;
        std::io::stdout().flush()?;
    }
    Ok(())
}

// The parent.

/// A child, which ends when its standard input is closed.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts one and reads the line that it says when it is ready.
    fn start(arguments: &[&str]) -> Result<(Self, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut process = Self { child, input, output };
        let mut line = String::new();
        process.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a {} ended", arguments[0]);
        Ok((process, line.trim().to_owned()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// p50 and p99 in microseconds, and calls per second.
#[derive(Clone, Copy, Default)]
struct Figures {
    p50: f64,
    p99: f64,
    rate: f64,
}

fn round(callers: &mut [Process], way: &str) -> Result<Figures> {
    let calls = CALLS / callers.len();
    for caller in &mut *callers {
        writeln!(caller.input.as_mut().context("no input")?, "{way}")?;
    }
    let (mut times, mut longest) = (Vec::with_capacity(CALLS), 0.0_f64);
    for caller in callers {
        let mut bytes = vec![0; calls * 4];
        caller.output.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let taken: Vec<f64> = words.iter().map(|word| f64::from(u32::from_le_bytes(*word)) / 1e3).collect();
        longest = longest.max(taken.iter().sum());
        times.extend(taken);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[times.len() * share / 100];
    Ok(Figures { p50: at(50), p99: at(99), rate: times.len() as f64 / longest * 1e6 })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Where callers, node and owner run: numbers of cores, "-" for any.
struct Place {
    name: &'static str,
    callers: &'static str,
    node: &'static str,
    owner: &'static str,
}

/// The owner stands for another host, so it never shares the node's core.
const PLACES: [Place; 3] = [
    Place { name: "same core", callers: "0", node: "0", owner: "1" },
    Place { name: "other core", callers: "0", node: "1", owner: "0" },
    Place { name: "unpinned", callers: "-", node: "-", owner: "-" },
];

/// Rounds of both ways in turn, each round with one [`Figures`] for each of [`WAYS`].
fn compare(place: &Place, callers: usize, remote: bool) -> Result<Vec<[Figures; 2]>> {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let name = format!("ephpm_kv-bench-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
    // Neither is closed on exec: that is how they get to the children.
    let memory = rustix::fs::memfd_create(&*name, rustix::fs::MemfdFlags::empty())?;
    rustix::fs::ftruncate(&memory, size_of::<Memory>() as u64)?;
    let bell = eventfd(0, EventfdFlags::NONBLOCK)?;
    let (memory, bell) = (&memory.as_raw_fd().to_string(), &bell.as_raw_fd().to_string());

    let owner = if remote { Some(Process::start(&["owner", place.owner])?) } else { None };
    let address = owner.as_ref().map_or("-", |(_, address)| address);
    let (_node, pid) = Process::start(&["node", place.node, &name, memory, bell, address])?;
    let calls = &(CALLS / callers).to_string();
    let mut running = Vec::new();
    for index in 0..callers {
        let index = &index.to_string();
        running.push(Process::start(&["caller", place.callers, &pid, &name, memory, bell, index, calls])?.0);
    }
    let mut rounds = Vec::new();
    for number in 0..ROUNDS {
        let mut figures = [Figures::default(); 2];
        for step in 0..2 {
            let way = (number + step) % 2;
            figures[way] = round(&mut running, WAYS[way])?;
        }
        rounds.push(figures);
    }
    Ok(rounds)
}

fn measure() -> Result<()> {
    for encode in [|out: &mut _| encode_request(1, &request(), out), |out: &mut _| encode_response(1, &response(), out)]
    {
        let mut out = BytesMut::new();
        encode(&mut out);
        assert_eq!(out.len(), FRAME_LEN);
    }
    println!(
        "{CALLS} calls of {FRAME_LEN} bytes there and back in each of {ROUNDS} rounds; microseconds, medians of rounds."
    );
    println!(
        "\"remote\": the node asks an owner over TCP. Ratios are slot to socket, with the lowest and highest round.\n"
    );
    println!(
        "place       callers          socket p50   p99    slot p50   p99   ratio p50           ratio p99   ratio calls/s"
    );
    let cores = std::thread::available_parallelism()?.get();
    for place in &PLACES {
        if place.name != "unpinned" && cores < 2 {
            println!("{:11} needs two cores", place.name);
            continue;
        }
        for callers in [1, SLOTS] {
            let mut saved = 0.0;
            for remote in [false, true] {
                let rounds = compare(place, callers, remote)?;
                let of = |way: usize, pick: fn(&Figures) -> f64| {
                    median(rounds.iter().map(|round| pick(&round[way])).collect())
                };
                let ratio = |pick: fn(&Figures) -> f64| {
                    let mut ratios: Vec<f64> = rounds.iter().map(|[socket, slot]| pick(slot) / pick(socket)).collect();
                    ratios.sort_by(f64::total_cmp);
                    format!("{:.2} ({:.2}-{:.2})", ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1])
                };
                let (socket, slot) = (of(0, |f| f.p50), of(1, |f| f.p50));
                println!(
                    "{:11} {callers:>7} {:8} {socket:>10.1} {:>7.1} {slot:>9.1} {:>7.1}   {:17} {:17} {:17}",
                    place.name,
                    if remote { "remote" } else { "node" },
                    of(0, |f| f.p99),
                    of(1, |f| f.p99),
                    ratio(|f| f.p50),
                    ratio(|f| f.p99),
                    ratio(|f| f.rate),
                );
                if remote {
                    println!(
                        "{:20} what the slot saves at the node is {:.0}% of the remote call",
                        "",
                        saved / socket * 100.0
                    );
                } else {
                    saved = socket - slot;
                }
            }
        }
    }
    Ok(())
}
