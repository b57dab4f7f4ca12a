//! Registers of a stopped thread: a system call to make, and the end of an interrupted one.

use libc::user_regs_struct;

/// The code segment of 64-bit programs (`__USER_CS` in `arch/x86/include/asm/segment.h`).
const CODE_64: u64 = 0x33;

/// `-ERESTARTNOHAND` (`include/linux/errno.h`): the call is made again unless a handler runs first,
/// else it fails with `EINTR`.
const RESTART_UNLESS_HANDLED: u64 = -514_i64 as u64;

/// Results below this one are addresses, from it on negative error numbers.
const FIRST_ERROR: u64 = -4095_i64 as u64;

/// True if the thread executes 64-bit code.
pub(crate) fn is_64_bit(registers: &user_regs_struct) -> bool {
    registers.cs == CODE_64
}

/// True if the thread was stopped in a system call. Such a thread is in no restartable sequence
/// (rseq), because those make no calls.
pub(crate) fn is_in_syscall(registers: &user_regs_struct) -> bool {
    registers.orig_rax as i64 >= 0
}

/// The registers with which a thread makes a system call at the instruction at `instruction`.
pub(crate) fn calling(
    saved: &user_regs_struct,
    instruction: u64,
    number: libc::c_long,
    [first, second, third, fourth, fifth, sixth]: [u64; 6],
) -> user_regs_struct {
    user_regs_struct {
        rip: instruction,
        rax: number as u64,
        // Else the kernel would restart the interrupted call.
        orig_rax: u64::MAX,
        rdi: first,
        rsi: second,
        rdx: third,
        r10: fourth,
        r8: fifth,
        r9: sixth,
        ..*saved
    }
}

/// The result of a system call; an error number if it failed.
pub(crate) fn result(registers: &user_regs_struct) -> Result<u64, i32> {
    match registers.rax {
        error if error >= FIRST_ERROR => Err((error as i64).unsigned_abs() as i32),
        value => Ok(value),
    }
}

/// True if a call was interrupted before it did anything and wants to be made again
/// (`-ERESTARTSYS` to `-ERESTART_RESTARTBLOCK`).
pub(crate) fn wants_restart(error: i32) -> bool {
    (512..=516).contains(&error)
}

/// Some calls fail with `EINTR` when the thread is stopped, though no signal handler runs
/// (signal(7), "Interruption of system calls and library functions by stop signals"). Lets the
/// kernel make such a call again, unless a handler runs after all. All of these calls have done
/// nothing when they fail so. A time limit among their arguments starts anew.
///
/// Returns the registers to set, if any.
pub(crate) fn restarting(registers: &user_regs_struct) -> Option<user_regs_struct> {
    let number = registers.orig_rax as i64;
    let is_interrupted = result(registers) == Err(libc::EINTR)
        && [
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_write,
            libc::SYS_writev,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_io_getevents,
            libc::SYS_io_uring_enter,
        ]
        .contains(&number);
    is_interrupted.then_some(user_regs_struct { rax: RESTART_UNLESS_HANDLED, ..*registers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(orig_rax: i64, rax: i64) -> user_regs_struct {
        user_regs_struct {
            r15: 15,
            r14: 14,
            r13: 13,
            r12: 12,
            rbp: 5,
            rbx: 3,
            r11: 11,
            r10: 10,
            r9: 9,
            r8: 8,
            rax: rax as u64,
            rcx: 1,
            rdx: 2,
            rsi: 6,
            rdi: 7,
            orig_rax: orig_rax as u64,
            rip: 0x1000,
            cs: 0x33,
            eflags: 0x246,
            rsp: 0x7000,
            ss: 0x2b,
            fs_base: 0xf5,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        }
    }

    #[test]
    fn a_call_sets_its_arguments_and_keeps_stack_and_threads_storage() {
        let saved = registers(libc::SYS_nanosleep, -516);
        let call = calling(&saved, 0x2000, libc::SYS_mmap, [21, 22, 23, 24, 25, 26]);
        let arguments = [call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9];
        assert_eq!(arguments, [21, 22, 23, 24, 25, 26]);
        assert_eq!((call.rip, call.rax, call.orig_rax), (0x2000, 9, u64::MAX));
        assert_eq!((call.rsp, call.fs_base, call.rbx), (0x7000, 0xf5, 3));
        assert!(!is_in_syscall(&call) && is_in_syscall(&saved));
    }

    #[test]
    fn results_are_values_or_error_numbers() {
        for (rax, expected) in
            [(0, Ok(0)), (-1, Err(1)), (-4095, Err(4095)), (-4096, Ok(-4096_i64 as u64))]
        {
            assert_eq!(result(&registers(-1, rax)), expected);
        }
        assert!(wants_restart(512) && wants_restart(516));
        assert!(!wants_restart(libc::EINTR));
    }

    #[test]
    fn only_calls_that_a_stop_makes_fail_are_made_again() {
        let table = [
            (libc::SYS_epoll_wait, -4, true),
            (libc::SYS_epoll_wait, -514, false),
            (libc::SYS_epoll_wait, 1, false),
            (libc::SYS_nanosleep, -516, false),
            (libc::SYS_close, -4, false),
            (libc::SYS_connect, -4, false),
            (-1, -4, false),
        ];
        for (number, rax, expected) in table {
            let new = restarting(&registers(number, rax));
            assert_eq!(new.is_some(), expected, "{number} {rax}");
            assert!(new.is_none_or(|new| new.rax as i64 == -514 && new.orig_rax == number as u64));
        }
    }
}
