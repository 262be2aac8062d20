#include "session.hpp"

#include <sys/epoll.h>

#include <cstring>

#include "clock.hpp"
#include "errors.hpp"
#include "rdzv/payload.hpp"

namespace rdzv::load {

namespace {

constexpr std::uint8_t kEphemeral = 1, kGuarded = 2;
constexpr std::uint32_t kSignOfLife = 0xFFFFFFFF;  // the id of all keep-alives
constexpr std::size_t kHead = 9;                   // length, id, status or operation
const Limits kLimits;

std::string frame(std::uint32_t id, Operation operation, std::string_view payload) {
  std::string bytes;
  add_number(bytes, static_cast<std::uint32_t>(kHead - 4 + payload.size()));
  add_number(bytes, id);
  bytes += static_cast<char>(operation);
  bytes += payload;
  return bytes;
}

}  // namespace

void Session::connect(const Place& server, const std::optional<in_addr>& source, std::uint32_t ttl_ms,
                      std::string_view run) {
  socket_.open(server.address.ss_family, source);
  socket_.connect(server);
  connecting_ = true;
  opening_ += static_cast<char>(kFramingOpcode);
  opening_ += kFramingMagic;
  add_number(opening_, kFramingVersion);
  std::string payload;
  add_number(payload, ttl_ms);
  add_text(payload, run);
  opening_ += frame(++last_id_, Operation::kOpen, payload);
}

void Session::on_ready(std::uint32_t events, Listener& listener) {
  if (connecting_) {
    socket_.established();
    connecting_ = false;
    asks_ = true;
    ++counts_[coordination_index(Operation::kOpen)];
    send(opening_);
    opening_ = {};
  }
  socket_.flush();
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
    socket_.read(events, [&](std::string_view bytes) { take(bytes, listener); });
  }
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
  if (fd() >= 0 && greeted_ && now_ns() - sent_ns_ >= after_ns) {
    send(frame(kSignOfLife, Operation::kKeepAlive, {}));
  }
}

void Session::ask(Operation operation, std::string_view payload) {
  asks_ = true;
  ++counts_[coordination_index(operation)];
  send(frame(++last_id_, operation, payload));
}

void Session::send(std::string_view bytes) {
  sent_ns_ = now_ns();
  socket_.send(bytes);
}

void Session::take(std::string_view bytes, Listener& listener) {
  std::string joined;
  if (!partial_.empty()) {
    joined = std::move(partial_) + std::string(bytes);
    bytes = joined;
  }
  while (const std::size_t size = whole(bytes)) {
    const std::string_view one = bytes.substr(0, size);
    bytes.remove_prefix(size);
    if (greeted_) {
      take_frame(one, listener);
    } else if (one != std::string(kFramingMagic) + std::string(reinterpret_cast<const char*>(&kFramingVersion), 4)) {
      throw LoadError("what answers is not a native store of this version");
    } else {
      greeted_ = true;
    }
  }
  partial_ = std::string(bytes);
}

std::size_t Session::whole(std::string_view bytes) const {
  if (!greeted_) {
    const std::size_t size = kFramingMagic.size() + sizeof kFramingVersion;
    return bytes.size() < size ? 0 : size;
  }
  std::uint32_t length = 0;
  if (bytes.size() < sizeof length) {
    return 0;
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length < kHead - sizeof length || length > kMaxFrame) {
    throw LoadError("an answer says that it has " + std::to_string(length) + " bytes");
  }
  return bytes.size() < sizeof length + length ? 0 : sizeof length + length;
}

void Session::take_frame(std::string_view frame, Listener& listener) {
  std::uint32_t id = 0;
  std::memcpy(&id, frame.data() + 4, sizeof id);
  const auto status = static_cast<FrameStatus>(frame[8]);
  frame.remove_prefix(kHead);
  if (status == FrameStatus::kPush) {
    Payload payload(frame, kLimits);
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
    throw LoadError("refused: " + std::string(frame));
  } else if (id != kSignOfLife) {
    if (id != last_id_ || !asks_) {
      throw LoadError("an answer to request " + std::to_string(id) + ", which is not under way");
    }
    asks_ = false;
    listener.on_reply(frame);
  }
}

}  // namespace rdzv::load
