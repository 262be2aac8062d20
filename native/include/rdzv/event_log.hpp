// Lines for a person, written to a pipe that somebody else reads. Never blocks; a flood is counted, not written.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "rdzv/unique_fd.hpp"

namespace rdzv {

class EventLog {
 public:
  // `fd`: the writing end of a pipe, made non-blocking here. -1: nothing is written.
  explicit EventLog(UniqueFd fd);
  // At most ten lines a second; the next one that is written says how many were not. Thread-safe.
  void write(const std::string& line, std::int64_t now_ms);
  // Without that limit, for what is said once. Thread-safe.
  void always(const std::string& line);
  // Whoever reads it hears that there is nothing more to come. Thread-safe.
  void end();

 private:
  static constexpr int kLinesPerSecond = 10;

  std::mutex mutex_;
  UniqueFd fd_;
  std::int64_t second_ = -1;
  int lines_ = 0;
  std::uint64_t withheld_ = 0;
};

}  // namespace rdzv
