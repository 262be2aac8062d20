// The counted frames of one direction of a trunk, until the other side has acknowledged them: what a broken connection
// has lost is sent again on the next one, and nothing twice. One thread at a time; knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "rdzv/output.hpp"

namespace rdzv {

class FrameLog {
 public:
  void add(std::string frame) {
    bytes_ += frame.size();
    frames_.push_back(std::make_shared<const std::string>(std::move(frame)));
  }
  // The other side has the first `count` of all frames. False: it cannot have.
  bool acknowledge(std::uint64_t count) {
    if (count < first_ || count > first_ + next_) {
      return count < first_;  // an older word than the last one
    }
    for (; first_ < count; ++first_, --next_) {
      bytes_ -= frames_.front()->size();
      frames_.pop_front();
    }
    return true;
  }
  // For a new connection: the other side has `count` frames, what comes after is to be sent again. False: it cannot be.
  bool rewind(std::uint64_t count) {
    if (count < first_ || count > first_ + frames_.size()) {
      return false;
    }
    next_ = frames_.size();
    const bool known = acknowledge(count);
    next_ = 0;
    return known;
  }
  // Moves what has not been sent yet to the end of `to`. False: there is nothing.
  bool take(Output& to) {
    const bool any = next_ < frames_.size();
    for (; next_ < frames_.size(); ++next_) {
      const auto& frame = frames_[next_];
      if (frame->size() >= kShareFrom) {
        to.raw(frame);
      } else {
        to.raw(*frame);
      }
    }
    return any;
  }

  std::size_t kept() const { return frames_.size(); }
  std::size_t bytes() const { return bytes_; }
  void clear() {
    frames_.clear();
    bytes_ = next_ = 0;
  }

 private:
  static constexpr std::size_t kShareFrom = 16 * 1024;

  std::deque<std::shared_ptr<const std::string>> frames_;
  std::uint64_t first_ = 0;  // how many came before the first that is kept
  std::size_t next_ = 0;     // of those that are kept, which is sent next
  std::size_t bytes_ = 0;
};

}  // namespace rdzv
