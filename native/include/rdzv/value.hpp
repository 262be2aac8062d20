// A stored value: changed in place while it is private, shared with readers once it is large and read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rdzv/output.hpp"

namespace rdzv {

// The text of a value that replies refer to. Once the value has changed, only unread replies keep it: that is memory
// which clients who do not read make the server hold, so it is counted.
class SharedText {
 public:
  explicit SharedText(std::string&& text) : text_(std::move(text)) {}
  ~SharedText() {
    if (detached_) {
      detached_bytes_.fetch_sub(text_.size(), std::memory_order_relaxed);
    }
  }
  SharedText(const SharedText&) = delete;
  SharedText& operator=(const SharedText&) = delete;

  const std::string& text() const { return text_; }
  // Once, by the value, before it lets go.
  void detach() {
    detached_ = true;
    detached_bytes_.fetch_add(text_.size(), std::memory_order_relaxed);
  }
  // Of all servers of the process.
  static std::uint64_t detached_bytes() { return detached_bytes_.load(std::memory_order_relaxed); }

 private:
  static inline std::atomic<std::uint64_t> detached_bytes_{0};

  const std::string text_;
  bool detached_ = false;  // read by the last one to let go, which comes after
};

class Value {
 public:
  // From this size on a reply refers to the value instead of copying it. Below, a copy costs less than the second
  // part of a gathered send.
  static constexpr std::size_t kShareFrom = 16 * 1024;

  Value() = default;
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value() { let_go(); }

  std::string_view view() const { return shared_ ? std::string_view(shared_->text()) : std::string_view(text_); }

  void assign(std::string_view value) {
    let_go();
    text_.assign(value);
  }

  void append(std::string_view value) {
    if (shared_) {  // readers may still be sent it as it was
      text_.assign(shared_->text());
      let_go();
    }
    text_.append(value);
  }

  // Forgets the value and its memory.
  void clear() {
    let_go();
    std::string().swap(text_);
  }

  // The value, into a reply.
  void write(Output& reply) {
    if (!shared_ && text_.size() >= kShareFrom) {
      shared_ = std::make_shared<SharedText>(std::exchange(text_, {}));
    }
    if (shared_) {
      reply.bytes(Output::Shared(shared_, &shared_->text()));
    } else {
      reply.bytes(text_);
    }
  }

 private:
  void let_go() {
    if (shared_) {
      shared_->detach();
      shared_.reset();
    }
  }

  std::string text_;
  std::shared_ptr<SharedText> shared_;
};

}  // namespace rdzv
