//! Making a process of its own out of a PHP worker: for the node, which must outlive the worker and hold nothing of
//! its.
//!
//! - prepare: all signals are blocked, so that none of PHP's handlers runs in the child.
//! - parent: waits for the intermediate child, which ends at once.
//! - child: forks again, so that the node is nobody's child, in a process group of its own; then it drops what it
//!   inherited and runs. It never returns to PHP, runs none of its exit handlers, and touches nothing of Zend.

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Name of the process, as `ps -o comm` shows it.
const NAME: &std::ffi::CStr = c"ephpm_kv";

/// Runs `main` in a process of its own, which keeps the descriptors `keep` and shows `title` in `ps`. Returns once it
/// is on its way. Errors: no process can be had.
pub(super) fn detach(title: &str, keep: &[RawFd], main: impl FnOnce()) -> io::Result<()> {
    super::fork::with_signals_blocked(|| {
        // SAFETY: the child runs `middle`, which does not return. The memory of other threads' (PHP's servers that
        // fork have none) is not touched by it beyond what the C library makes safe after a fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => middle(title, keep, main),
            child => wait(child),
        }
    })
}

fn wait(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid to write to, `child` is ours.
        match unsafe { libc::waitpid(child, &mut status, 0) } {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                // Children that are ignored are reaped by the kernel.
                error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                error => return Err(error),
            },
            _ if status == 0 => return Ok(()),
            _ => return Err(io::Error::other("the second fork failed")),
        }
    }
}

fn exit(code: c_int) -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(code) }
}

fn middle(title: &str, keep: &[RawFd], main: impl FnOnce()) -> ! {
    // Signals to PHP's process group do not reach it. A session of its own would do that too, but where no cgroup
    // shares the processor out, Linux does by session (autogroup): workers that take all they can get then starve a
    // node that has just started, for seconds.
    // SAFETY: no memory is involved.
    unsafe { libc::setpgid(0, 0) };
    // SAFETY: as in `detach`.
    match unsafe { libc::fork() } {
        -1 => exit(1),
        0 => {}
        _ => exit(0),
    }
    let ended = catch_unwind(AssertUnwindSafe(|| {
        drop_descriptors(keep);
        drop_signals();
        drop_memory();
        // SAFETY: strings that end with NUL; no memory is written.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
            libc::chdir(c"/".as_ptr());
        }
        raise_descriptor_limit();
        show(title);
        main();
    }));
    exit(c_int::from(ended.is_err()))
}

/// Closes everything but `keep`; 0 to 2 become the null device.
fn drop_descriptors(keep: &[RawFd]) {
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for standard in 0..3 {
            // SAFETY: replaces descriptors that nothing here owns.
            unsafe { libc::dup2(null.as_raw_fd(), standard) };
        }
    }
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        close_range(first, fd - 1);
        first = fd + 1;
    }
    close_range(first, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    if first > last {
        return;
    }
    // SAFETY: closes descriptors of PHP's and the module's, none of which is used in this process again.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // A kernel before 5.9.
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<u32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| (first..=last).contains(number)) {
        // SAFETY: as above.
        unsafe { libc::close(number as RawFd) };
    }
}

/// Signals do what they do by default, and none is blocked; a broken pipe is an error of the write.
fn drop_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        let action = if signal == libc::SIGPIPE { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: replaces handlers of PHP's; the two that cannot be changed, and those of the C library, refuse.
        unsafe { libc::signal(signal, action) };
    }
    // SAFETY: the set is filled before it is read.
    unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Gives back memory that PHP shares between its processes (opcache's, APCu's, the server's scoreboard): after a
/// reload nobody but the node would hold it.
fn drop_memory() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(permissions), Some(path)) = (fields.next(), fields.next(), fields.nth(3)) else {
            continue;
        };
        if !permissions.ends_with('s') || !(path == "/dev/zero" || path.starts_with("/anon_hugepage")) {
            continue;
        }
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((Some(from), Some(to))) = range.split_once('-').map(|(from, to)| (number(from), number(to))) else {
            continue;
        };
        // SAFETY: shared anonymous memory is PHP's, its extensions' or `family`'s, and none of them runs here again.
        unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
    }
}

/// Connections to every process of the host and every member take more than the usual soft limit.
fn raise_descriptor_limit() {
    // SAFETY: `limit` is valid to write to and to read.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(65_536).max(limit.rlim_cur);
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Writes `title` over the arguments, where `ps` reads it. They and the environment lie one behind the other; the
/// environment moves away first.
fn show(title: &str) {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    let Some((_, fields)) = stat.rsplit_once(')') else { return };
    // Fields 48 to 51 of proc(5): where arguments and environment begin and end; the state, number 3, comes first.
    let numbers: Vec<usize> = fields.split_ascii_whitespace().skip(45).take(4).flat_map(str::parse).collect();
    let [from, arguments_end, environment, to] = numbers[..] else { return };
    if from == 0 || arguments_end <= from || environment < arguments_end || to < environment {
        return;
    }
    let kept: Vec<CString> = std::env::vars_os()
        .filter_map(|(name, value)| {
            let (name, value) = (name.as_encoded_bytes(), value.as_encoded_bytes());
            CString::new([name, b"=", value].concat()).ok()
        })
        .collect();
    let mut pointers: Vec<*mut c_char> = kept.into_iter().map(CString::into_raw).collect();
    pointers.push(std::ptr::null_mut());
    let title = &title.as_bytes()[..title.len().min(to - from - 1)];
    // SAFETY: the kernel's own words for where this process's arguments and environment lie; nothing reads them there
    // any more: this process has one thread, which runs no code of PHP's, and `environ` is replaced by a copy that is
    // never freed.
    unsafe {
        environ = Vec::leak(pointers).as_mut_ptr();
        let start = from as *mut u8;
        std::ptr::write_bytes(start, 0, to - from);
        // A title longer than the arguments were runs into the environment's place: the kernel shows it all when the
        // arguments do not end with NUL.
        std::ptr::copy_nonoverlapping(title.as_ptr(), start, title.len());
    }
}
