#include "session.hpp"

#include "clock.hpp"
#include "errors.hpp"
#include "rdzv/payload.hpp"

namespace rdzv::load {

namespace {

constexpr std::uint8_t kEphemeral = 1, kGuarded = 2;
constexpr std::uint32_t kSignOfLife = 0xFFFFFFFF;  // the id of all keep-alives
const Limits kLimits;

}  // namespace

void Session::connect(const Place& server, const std::optional<in_addr>& source, std::uint32_t ttl_ms,
                      std::string_view run) {
  connection_.connect(server, source);
  std::string payload;
  add_number(payload, ttl_ms);
  add_text(payload, run);
  ask(Operation::kOpen, payload);
}

void Session::on_ready(std::uint32_t events, Listener& listener) {
  connection_.on_ready(events, [&](std::uint32_t id, FrameStatus status, std::string_view payload) {
    take(id, status, payload, listener);
  });
}

void Session::watch(std::uint32_t number, std::string_view prefix) {
  std::string payload;
  add_number(payload, number);
  add_text(payload, prefix);
  add_number(payload, std::uint64_t{0});
  ask(Operation::kWatch, payload);
}

void Session::put(std::string_view key, std::string_view value, bool ephemeral, bool create) {
  std::string payload(1, static_cast<char>((ephemeral ? kEphemeral : 0) | (create ? kGuarded : 0)));
  if (create) {
    add_text(payload, key);
    add_number(payload, std::uint64_t{0});
  }
  add_number(payload, std::uint32_t{1});
  add_text(payload, key);
  add_text(payload, value);
  ask(Operation::kPut, payload);
}

void Session::keep_alive(std::uint64_t after_ns) {
  if (fd() >= 0 && connection_.greeted() && now_ns() - connection_.sent_ns() >= after_ns) {
    connection_.send(kSignOfLife, Operation::kKeepAlive, {});
  }
}

void Session::ask(Operation operation, std::string_view payload) {
  asks_ = true;
  ++counts_[coordination_index(operation)];
  connection_.send(++last_id_, operation, payload);
}

void Session::take(std::uint32_t id, FrameStatus status, std::string_view bytes, Listener& listener) {
  if (status == FrameStatus::kPush) {
    Payload payload(bytes, kLimits);
    payload.number<std::uint32_t>();  // of the watch
    for (std::uint32_t left = payload.number<std::uint32_t>(); left > 0 && payload.ok(); --left) {
      const bool gone = payload.number<std::uint8_t>() != 0;
      payload.number<std::uint64_t>();  // revision
      const std::string_view key = payload.key(), value = payload.value();
      if (payload.ok()) {
        listener.on_event(key, value, gone);
      }
    }
    payload.end();
    if (!payload.ok()) {
      throw LoadError("a push is cut short, or too long");
    }
    listener.on_told();
  } else if (status != FrameStatus::kOk) {
    throw LoadError("refused: " + std::string(bytes));
  } else if (id != kSignOfLife) {
    if (id != last_id_ || !asks_) {
      throw LoadError("an answer to request " + std::to_string(id) + ", which is not under way");
    }
    asks_ = false;
    listener.on_reply(bytes);
  }
}

}  // namespace rdzv::load
