// Requests as a client sends them, written out by hand: nothing of the server's own tables is used.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace rdzv::test::wire {

using Texts = std::vector<std::string>;

template <class Integer>
std::string raw(Integer number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

inline std::string u64(std::uint64_t number) { return raw(number); }
inline std::string i64(std::int64_t number) { return raw(number); }
inline std::string text(std::string_view bytes) { return u64(bytes.size()) + std::string(bytes); }
inline std::string op(int type) { return std::string(1, static_cast<char>(type)); }

inline std::string texts(const Texts& all) {
  std::string bytes;
  for (const std::string& each : all) {
    bytes += text(each);
  }
  return bytes;
}

inline std::string greeting() { return op(0) + raw(std::uint32_t{0x3C85F7CE}); }
inline std::string set(std::string_view key, std::string_view value) { return op(1) + text(key) + text(value); }
inline std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  return op(2) + text(key) + text(expected) + text(desired);
}
inline std::string get(std::string_view key) { return op(3) + text(key); }
inline std::string add(std::string_view key, std::int64_t delta) { return op(4) + text(key) + i64(delta); }
inline std::string check(const Texts& keys) { return op(5) + u64(keys.size()) + texts(keys); }
inline std::string wait(const Texts& keys) { return op(6) + u64(keys.size()) + texts(keys); }
inline std::string num_keys() { return op(7); }
inline std::string delete_key(std::string_view key) { return op(8) + text(key); }
inline std::string append(std::string_view key, std::string_view value) { return op(9) + text(key) + text(value); }
inline std::string multi_get(const Texts& keys) { return op(10) + u64(keys.size()) + texts(keys); }
// Keys and values in turn.
inline std::string multi_set(const Texts& pairs) { return op(11) + u64(pairs.size() / 2) + texts(pairs); }
inline std::string cancel_wait() { return op(12); }
inline std::string ping(std::uint32_t nonce) { return op(13) + raw(nonce); }
inline std::string queue_push(std::string_view key, std::string_view value) { return op(14) + text(key) + text(value); }
inline std::string queue_pop(std::string_view key) { return op(15) + text(key); }
inline std::string queue_len(std::string_view key) { return op(16) + text(key); }
inline std::string list_keys() { return op(17); }
inline std::string barrier(std::string_view key, std::int64_t world_size) {
  return op(18) + text(key) + i64(world_size);
}

// Our own framing.
inline std::string framed_greeting() { return "\xF7RDZV" + raw(std::uint32_t{1}); }
// Of the proof of a token: opcode, magic, version.
inline std::string introduction_head() { return "\xF8RDZV" + raw(std::uint32_t{1}); }
inline std::string framed_welcome() { return "RDZV" + raw(std::uint32_t{1}); }
inline std::string frame(std::uint32_t id, std::uint8_t operation_or_status, std::string_view payload) {
  return raw(static_cast<std::uint32_t>(5 + payload.size())) + raw(id) + raw(operation_or_status) +
         std::string(payload);
}

// Replies.
inline std::string stop_waiting() { return std::string(1, '\0'); }
inline std::string wait_canceled() { return std::string(1, '\1'); }
inline std::string ready() { return std::string(1, '\0'); }
inline std::string not_ready() { return std::string(1, '\1'); }

// One request of every type, small and valid.
inline Texts one_of_each() {
  return {greeting(),
          set("/k", "value"),
          compare_set("/c", "", "desired"),
          get("/k"),
          add("/a", -7),
          check({"/k", "/missing"}),
          wait({"/k"}),
          num_keys(),
          delete_key("/k"),
          append("/ap", "po"),
          multi_get({"/m1", "", "/m2"}),
          multi_set({"/m1", "x", "/m2", "yy", "/m3", ""}),
          cancel_wait(),
          ping(4242),
          queue_push("/q", "one"),
          queue_pop("/q"),
          queue_len("/q"),
          list_keys(),
          barrier("/b", 2)};
}

}  // namespace rdzv::test::wire
