// Preloaded into a process, its wall clock is AHEAD_S seconds ahead; its monotonic clock is as it was.
// With CLOCK_AHEAD_WHILE=FILE in the environment it is so while FILE is there, and right before and after.
//
// Deadlines that the process takes from its wall clock are moved back before the kernel sees them.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr time_t kAhead = AHEAD_S;
constexpr time_t kDay = 86400;

time_t true_seconds() {
  timespec now{};
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  return now.tv_sec;
}

time_t ahead() {
  static const char* const file = getenv("CLOCK_AHEAD_WHILE");
  if (file == nullptr) return kAhead;
  const int before = errno;  // whoever asks for the time does not expect it to change
  const bool there = syscall(SYS_faccessat, AT_FDCWD, file, F_OK) == 0;
  errno = before;
  return there ? kAhead : 0;
}

timespec moved_back(const timespec* deadline) { return {deadline->tv_sec - ahead(), deadline->tv_nsec}; }

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, now);
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
  return static_cast<int>(failed);
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  const time_t moved = true_seconds() + ahead();
  if (now != nullptr) *now = moved;
  return moved;
}

// Which clock a condition goes by cannot be asked; nobody's machine has been up since 1970.
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  if (deadline->tv_sec < true_seconds() - kDay) {
    return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, deadline);
  }
  const timespec true_deadline = moved_back(deadline);
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &true_deadline);
}

int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  const timespec true_deadline = moved_back(deadline);
  return sem_clockwait(semaphore, CLOCK_REALTIME, &true_deadline);
}
}
