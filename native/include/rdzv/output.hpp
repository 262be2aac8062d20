// The replies that one client has not been sent yet. Small ones are copied together; large values are shared, so that
// ten thousand clients that read one value hold it once. One thread; knows no sockets.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rdzv {

class Output {
 public:
  using Shared = std::shared_ptr<const std::string>;

  void raw(std::string_view bytes) {
    size_ += bytes.size();
    owned_ += bytes.size();
    (chunks_.empty() ? head_ : tail()).append(bytes);
  }

  // The same without a copy.
  void raw(Shared bytes) {
    size_ += bytes->size();
    if (!bytes->empty()) {
      chunks_.push_back({{}, std::move(bytes)});
    }
  }

  // The same without a copy, but for this client alone.
  void own(std::string&& bytes) {
    size_ += bytes.size();
    owned_ += bytes.size();
    if (!bytes.empty()) {
      chunks_.push_back({std::move(bytes), nullptr});
    }
  }

  template <class Integer>
  void number(Integer value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    raw({bytes, sizeof value});
  }

  // As the wire has it: u64 length, then the bytes.
  void bytes(std::string_view value) {
    number<std::uint64_t>(value.size());
    raw(value);
  }
  void bytes(Shared value) {
    number<std::uint64_t>(value->size());
    raw(std::move(value));
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Memory that this client alone makes us hold: without the shared values.
  std::size_t owned() const { return owned_; }

  // Fills at most `max` parts with what is to be sent next, and returns how many.
  std::size_t gather(iovec* parts, std::size_t max) const;
  // `count` bytes have been sent. When all have, the buffer's memory stays until release().
  void consume(std::size_t count);

  // Memory for the first replies is lent by the event loop, and goes back when all are sent.
  void lend(std::string&& buffer) { head_ = std::move(buffer); }
  std::string release();

  // Forgets everything, and its memory.
  void clear();

 private:
  struct Chunk {
    std::string copied;
    Shared shared;
    std::string_view view() const { return shared ? std::string_view(*shared) : std::string_view(copied); }
  };

  void forget_sent(std::string& copied);
  std::string& tail();  // the last chunk, which may be copied to

  std::string head_;          // what comes before the first chunk
  std::vector<Chunk> chunks_;
  std::size_t first_ = 0;     // chunk that is sent next; those before are done with
  std::size_t sent_ = 0;      // of head_ while there is a part of it to send, else of chunks_[first_]
  bool head_done_ = false;
  std::size_t size_ = 0;
  std::size_t owned_ = 0;
};

}  // namespace rdzv
