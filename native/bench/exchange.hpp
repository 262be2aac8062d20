// One request of the load and the reply that it must bring, for a store or for the bare echo.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/query.hpp"

namespace rdzv::load {

// What a reply must be: `head`, then `body`. A number of any value where `number` is set (8 bytes).
struct Reply {
  std::array<char, 8> head{};
  std::size_t head_size = 0;
  std::string_view body;  // outlives the exchange
  bool number = false;

  std::size_t size() const { return head_size + body.size(); }
  std::string expected(std::size_t from, std::size_t count) const;
  // The first byte of `part`, which starts at `offset` of the reply, that is wrong; npos: none.
  std::size_t wrong(std::size_t offset, std::string_view part) const;
};

// A request under construction. One object serves for many requests, so that its memory is kept.
//
// For an echo, what is sent has the same size, but starts with two u32: its whole length and the length of the reply
// that it asks for, which then is all zero bytes. So the same workload moves the same bytes through either server.
class Exchange {
 public:
  explicit Exchange(bool echo) : echo_(echo) {}

  void connect(std::uint32_t nonce);  // VALIDATE and PING
  void set(std::string_view key, std::string_view value);
  void get(std::string_view key, std::string_view expected);
  void add(std::string_view key, std::int64_t delta);
  // `others`: whether the answer depends on what other clients do, which has no place among the latencies.
  void wait(std::string_view key, bool others);
  // torch's own barrier: the answer comes when `world` clients have asked.
  void barrier(std::string_view key, std::size_t world);
  // `keys` and `expected` are already laid out as on the wire (see `append_field`).
  void wait_many(std::size_t count, std::string_view keys, bool others = false);
  void multi_get(std::size_t count, std::string_view keys, std::string_view expected);

  std::string_view request() const { return request_; }
  const Reply& reply() const { return reply_; }
  std::string_view name() const { return name_; }
  std::uint64_t requests() const { return requests_; }
  bool timed() const { return timed_; }

 private:
  void start(Query query);
  // The reply begins with this number, or flag; then comes `body`.
  template <typename Number>
  void finish(Number head, std::string_view body = {});
  void finish();

  const bool echo_;
  std::string request_;
  Reply reply_;
  std::string_view name_;
  std::uint64_t requests_ = 1;
  bool timed_ = true;
};

// u64 length and bytes, as keys and values travel.
void append_field(std::string& to, std::string_view bytes);

// The largest reply that an echo gives.
inline constexpr std::size_t kEchoLimit = std::size_t{1} << 20;
// As many zero bytes, at most kEchoLimit.
std::string_view zeros(std::size_t count);

}  // namespace rdzv::load
