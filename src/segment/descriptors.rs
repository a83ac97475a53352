//! What gives access to a host segment: its memory, and a pipe that says whether any process still has it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::FdFlags;
use rustix::pipe::PipeFlags;

/// Seals without which a mapping could be cut under its users.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The descriptors of one segment. Every process of the segment holds all three; closed by what it executes.
#[derive(Debug)]
pub struct Descriptors {
    /// The memfd.
    pub memory: OwnedFd,
    /// Read end of the lifeline: hangs up when no process holds `alive`.
    pub hangup: OwnedFd,
    /// Write end of the lifeline. Nothing is ever written.
    pub alive: OwnedFd,
}

impl Descriptors {
    /// A fresh memfd of `size` bytes, which no process can resize and only this user (or root) can open anew, and a
    /// fresh lifeline.
    pub fn create(size: usize) -> io::Result<Self> {
        let memory = rustix::fs::memfd_create("ephpm_kv", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::fchmod(&memory, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&memory, size as u64)?;
        rustix::fs::fcntl_add_seals(&memory, SEALS)?;
        let (hangup, alive) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // The node makes a new write end out of the read end (see `revive`), perhaps as another user. The pipe can do
        // nothing but keep a node alive.
        rustix::fs::fchmod(&hangup, Mode::from_raw_mode(0o666))?;
        Ok(Self { memory, hangup, alive })
    }

    /// The same, opened once more.
    pub fn duplicate(&self) -> io::Result<Self> {
        let again = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        Ok(Self { memory: again(&self.memory)?, hangup: again(&self.hangup)?, alive: again(&self.alive)? })
    }

    /// A new write end of the lifeline whose read end is `hangup`, for a process that must not hold one itself. Needs
    /// `/proc`.
    pub fn revive(hangup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", hangup.as_raw_fd());
        rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            io::Error::new(io::Error::from(error).kind(), format!("{path} (is /proc mounted?): {error}"))
        })
    }

    /// Size of the memory, if it is a sealed memfd that this user or root made: anybody else's could change under us
    /// in ways that ours cannot.
    pub fn trusted_size(&self) -> Result<u64, String> {
        let seals = rustix::fs::fcntl_get_seals(&self.memory).map_err(|error| format!("not a memfd: {error}"))?;
        if !seals.contains(SEALS) {
            return Err("its size is not sealed".to_string());
        }
        let stat = rustix::fs::fstat(&self.memory).map_err(|error| error.to_string())?;
        let me = rustix::process::geteuid().as_raw();
        if stat.st_uid != me && stat.st_uid != 0 {
            return Err(format!("it belongs to user {}, this process runs as user {me}", stat.st_uid));
        }
        Ok(stat.st_size as u64)
    }

    /// User who made the segment.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.memory)?.st_uid)
    }

    /// Whether what this process executes inherits the descriptors.
    pub fn set_inherited(&self, inherited: bool) {
        let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
        for descriptor in [&self.memory, &self.hangup, &self.alive] {
            // Fails for no open descriptor.
            let _ = rustix::io::fcntl_setfd(descriptor, flags);
        }
    }

    /// Says which descriptors these are, for a process that inherits them: `memory:hangup:alive:device:inode`.
    pub fn describe(&self) -> io::Result<String> {
        let stat = rustix::fs::fstat(&self.memory)?;
        let number = AsRawFd::as_raw_fd;
        let (memory, hangup, alive) = (number(&self.memory), number(&self.hangup), number(&self.alive));
        Ok(format!("{memory}:{hangup}:{alive}:{}:{}", stat.st_dev, stat.st_ino))
    }

    /// Takes over the descriptors that another self of this process described. Errors: the text makes no sense, or
    /// something else is open under these numbers by now (which is left alone).
    pub fn inherit(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> = text.split(':').map(|part| part.parse().ok()).collect();
        let Some([memory, hangup, alive, device, inode]) = numbers.as_deref() else {
            return Err(format!("\"{}\" describes no segment", text.escape_default()));
        };
        let open = |number: u64| {
            let number = i32::try_from(number).ok().filter(|number| *number > 2).ok_or("not a descriptor")?;
            // SAFETY: only asks for the flags, and fails if nothing is open there.
            match unsafe { libc::fcntl(number, libc::F_GETFL) } {
                -1 => Err("a descriptor is closed"),
                _ => Ok(number),
            }
        };
        let [memory, hangup, alive] = [open(*memory)?, open(*hangup)?, open(*alive)?];
        if memory == hangup || hangup == alive || alive == memory {
            return Err("a descriptor is named twice".to_string());
        }
        // SAFETY: open, and borrowed only to look at it.
        let stat_of = |number| rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) });
        let is_pipe =
            |number| stat_of(number).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo());
        let same = stat_of(memory).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (*device, *inode));
        if !same || !is_pipe(hangup) || !is_pipe(alive) {
            return Err("the descriptors are not those of a segment any more".to_string());
        }
        // SAFETY: the three are open and, as device and inode show, were left to this process by its former self;
        // nobody else in it knows of them.
        let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Self { memory: own(memory), hangup: own(hangup), alive: own(alive) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_found_again_by_their_description() {
        let made = Descriptors::create(1 << 16).unwrap();
        let text = made.describe().unwrap();
        std::mem::forget(made);
        let found = Descriptors::inherit(&text).unwrap();
        assert_eq!(found.trusted_size(), Ok(1 << 16));
        assert_eq!(found.describe().unwrap(), text);
    }

    #[test]
    fn what_was_not_left_to_us_is_not_taken() {
        let made = Descriptors::create(1 << 16).unwrap();
        let text = made.describe().unwrap();
        let parts: Vec<&str> = text.split(':').collect();
        let other_inode = format!("{}:{}:{}:{}:1", parts[0], parts[1], parts[2], parts[3]);
        let twice = format!("{}:{}:{}:{}:{}", parts[0], parts[1], parts[1], parts[3], parts[4]);
        let no_pipe = format!("{}:{}:{}:{}:{}", parts[0], parts[0], parts[2], parts[3], parts[4]);
        for wrong in ["", "1:2:3", "a:b:c:d:e", "0:1:2:3:4", "90000:90001:90002:1:1", &other_inode, &twice, &no_pipe] {
            assert!(Descriptors::inherit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_lifeline_hangs_up_when_the_last_end_is_closed() {
        let Descriptors { hangup, alive, .. } = Descriptors::create(1 << 16).unwrap();
        rustix::io::ioctl_fionbio(&hangup, true).unwrap();
        let another = Descriptors::revive(std::os::fd::AsFd::as_fd(&hangup)).unwrap();
        drop(alive);
        assert_eq!(rustix::io::read(&hangup, &mut [0_u8; 1]), Err(rustix::io::Errno::AGAIN));
        drop(another);
        assert_eq!(rustix::io::read(&hangup, &mut [0_u8; 1]), Ok(0));
    }
}
