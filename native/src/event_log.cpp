#include "rdzv/event_log.hpp"

#include <fcntl.h>

#include <utility>

namespace rdzv {

EventLog::EventLog(UniqueFd fd) : fd_(std::move(fd)) {
  if (fd_) {
    fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
  }
}

void EventLog::end() {
  const std::lock_guard lock(mutex_);
  fd_.reset();
}

void EventLog::always(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (fd_) {
    const std::string text = line + '\n';
    [[maybe_unused]] const auto written = ::write(fd_.get(), text.data(), text.size());
  }
}

void EventLog::write(const std::string& line, std::int64_t now_ms) {
  const std::lock_guard lock(mutex_);
  if (!fd_) {
    return;
  }
  if (now_ms / 1000 != second_) {
    second_ = now_ms / 1000;
    lines_ = 0;
  }
  if (lines_ >= kLinesPerSecond) {
    ++withheld_;
    return;
  }
  ++lines_;
  std::string text = line;
  if (withheld_ > 0) {
    text += " (" + std::to_string(withheld_) + " more such events were not logged: see the statistics)";
  }
  text += '\n';
  // Up to PIPE_BUF bytes a write to a pipe is all or nothing.
  if (::write(fd_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    withheld_ = 0;
  } else {
    ++withheld_;
  }
}

}  // namespace rdzv
