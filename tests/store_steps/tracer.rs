//! A child that is stopped after any number of machine instructions of what it does.
//!
//! Stepping there one instruction at a time would take as many stops as instructions, for each place to stop at. So the
//! path is recorded once, and each further child runs freely to a breakpoint at the instruction in question, as often
//! as the path came by there before.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register};
use libc::{c_long, c_void, pid_t, user_regs_struct};

/// The longest instruction, in bytes.
const INSTRUCTION_MAX: usize = 16;

/// Bytes at the thread's base address in which the C library keeps what the kernel looks at when a thread dies: the
/// robust locks that it holds.
const THREAD_STATE: u64 = 4_096;

/// How a child ended or stopped.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// Stopped where it was to stop.
    There,
    /// It has ended by itself, with status 0.
    Ended,
}

/// A stopped child that does something. It is killed when this is dropped.
pub struct Traced {
    child: pid_t,
    ended: bool,
}

/// The instructions of an action, in the order in which they run.
pub struct Path {
    addresses: Vec<u64>,
    /// How often the address has been before in the path.
    before: Vec<u32>,
    /// Numbers of instructions after which a kill leaves something else than a kill one instruction earlier.
    states: Vec<usize>,
}

impl Path {
    /// Number of instructions.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// After how many instructions a kill may leave a state that no other does: those before which nothing has been
    /// done, and those that write to memory that outlives the process, or to what the kernel looks at when it dies.
    /// All other memory and all registers go with it.
    pub fn states(&self) -> &[usize] {
        &self.states
    }
}

/// Says what instructions write to.
struct Writes {
    decoded: HashMap<u64, Instruction>,
    info: InstructionInfoFactory,
    /// Where memory is mapped that outlives the process.
    shared: Vec<std::ops::Range<u64>>,
}

impl Writes {
    fn new() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
        let range = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            rest.get(..4)?.ends_with('s').then_some(number(from)?..number(to)?)
        };
        let shared = maps.lines().filter_map(range).collect();
        Self { decoded: HashMap::new(), info: InstructionInfoFactory::new(), shared }
    }

    /// Whether the instruction that comes next writes to memory that matters after the end of the process.
    fn matters(&mut self, child: &Traced, registers: &user_regs_struct) -> bool {
        let instruction = self.decoded.entry(registers.rip).or_insert_with(|| {
            let word = |index| child.ask(libc::PTRACE_PEEKTEXT, registers.rip + 8 * index, 0).to_ne_bytes();
            let bytes: Vec<u8> = (0..INSTRUCTION_MAX as u64 / 8).flat_map(word).collect();
            Decoder::with_ip(64, &bytes, registers.rip, DecoderOptions::NONE).decode()
        });
        // The kernel may do anything.
        if instruction.is_invalid() || instruction.code() == iced_x86::Code::Syscall {
            return true;
        }
        let writes = |access| {
            use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
        };
        let value = |register: Register, _, _| Some(value_of(registers, register));
        self.info.info(instruction).used_memory().iter().filter(|memory| writes(memory.access())).any(|memory| {
            let Some(address) = memory.virtual_address(0, value) else { return true };
            self.shared.iter().any(|range| range.contains(&address))
                || (registers.fs_base..registers.fs_base + THREAD_STATE).contains(&address)
        })
    }
}

fn value_of(registers: &user_regs_struct, register: Register) -> u64 {
    let full = match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        _ => 0,
    };
    match register.size() {
        4 => full & 0xffff_ffff,
        _ => full,
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if !self.ended {
            let mut status = 0;
            // SAFETY: `child` is a child of this process, not yet waited for.
            unsafe {
                libc::kill(self.child, libc::SIGKILL);
                libc::waitpid(self.child, &mut status, 0);
            }
        }
    }
}

impl Traced {
    /// A child about to `act`.
    pub fn new(act: impl FnOnce()) -> Self {
        // SAFETY: the child touches the segment, its stack and its heap, and leaves without running destructors; the
        // calls on it are plain system calls.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::raise(libc::SIGSTOP);
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
                    libc::_exit(if done.is_ok() { 0 } else { 99 })
                }
                child => child,
            }
        };
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        let mut traced = Self { child, ended: false };
        assert_eq!(traced.wait(), Stop::There);
        traced
    }

    fn wait(&mut self) -> Stop {
        let mut status = 0;
        // SAFETY: `status` is valid to write to.
        assert_eq!(unsafe { libc::waitpid(self.child, &mut status, 0) }, self.child);
        if libc::WIFEXITED(status) {
            self.ended = true;
            assert_eq!(libc::WEXITSTATUS(status), 0);
            return Stop::Ended;
        }
        assert!(libc::WIFSTOPPED(status), "status {status}");
        Stop::There
    }

    fn ask(&self, request: libc::c_uint, address: u64, data: u64) -> c_long {
        // SAFETY: the child is stopped; what the request reads or writes is the child's.
        unsafe { libc::ptrace(request, self.child, address as *mut c_void, data as *mut c_void) }
    }

    fn go(&mut self, request: libc::c_uint) -> Stop {
        assert_eq!(self.ask(request, 0, 0), 0, "ptrace is not allowed here");
        self.wait()
    }

    fn instruction(&self) -> u64 {
        self.ask(libc::PTRACE_PEEKUSER, 8 * libc::RIP as u64, 0) as u64
    }

    fn registers(&self) -> user_regs_struct {
        let mut registers = std::mem::MaybeUninit::<user_regs_struct>::zeroed();
        assert_eq!(self.ask(libc::PTRACE_GETREGS, 0, registers.as_mut_ptr() as u64), 0);
        // SAFETY: all numbers, zeroed and then filled.
        unsafe { registers.assume_init() }
    }

    /// Makes one instruction.
    fn step(&mut self) -> Stop {
        self.go(libc::PTRACE_SINGLESTEP)
    }

    /// Runs to the end, instruction by instruction.
    pub fn record(mut self) -> Path {
        let mut path = Path { addresses: Vec::new(), before: Vec::new(), states: vec![0] };
        let (mut seen, mut writes) = (HashMap::<u64, u32>::new(), Writes::new());
        loop {
            let registers = self.registers();
            let count = seen.entry(registers.rip).or_default();
            path.addresses.push(registers.rip);
            path.before.push(*count);
            *count += 1;
            let matters = writes.matters(&self, &registers);
            if self.step() == Stop::Ended {
                return path;
            }
            if matters {
                path.states.push(path.addresses.len());
            }
        }
    }

    /// Stops after the first `steps` instructions of `path`.
    pub fn run(&mut self, path: &Path, steps: usize) -> Stop {
        let (address, mut left) = (path.addresses[steps], path.before[steps]);
        if steps == 0 {
            return Stop::There;
        }
        // The first instruction may be the one that a breakpoint stands at.
        if self.instruction() == address {
            left -= 1;
            if self.step() == Stop::Ended {
                return Stop::Ended;
            }
        }
        let word = self.ask(libc::PTRACE_PEEKTEXT, address, 0) as u64;
        loop {
            const INT3: u64 = 0xcc;
            if self.instruction() != address {
                if self.ask(libc::PTRACE_POKETEXT, address, word & !0xff | INT3) != 0 {
                    // The kernel's own code in the process (vdso) cannot be written to.
                    return self.walk(address, left);
                }
                let stop = self.go(libc::PTRACE_CONT);
                if stop == Stop::Ended {
                    return stop;
                }
                assert_eq!(self.instruction(), address + 1, "stopped somewhere else");
                self.ask(libc::PTRACE_POKETEXT, address, word);
                self.ask(libc::PTRACE_POKEUSER, 8 * libc::RIP as u64, address);
            }
            if left == 0 {
                return Stop::There;
            }
            left -= 1;
            if self.step() == Stop::Ended {
                return Stop::Ended;
            }
        }
    }

    /// Steps until it has come by `address` so often.
    fn walk(&mut self, address: u64, mut left: u32) -> Stop {
        loop {
            if self.instruction() == address {
                if left == 0 {
                    return Stop::There;
                }
                left -= 1;
            }
            if self.step() == Stop::Ended {
                return Stop::Ended;
            }
        }
    }
}
