#include "proxy.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "clock.hpp"
#include "errors.hpp"
#include "exchange.hpp"
#include "rdzv/payload.hpp"

namespace rdzv::load {

namespace {

constexpr std::uint32_t kGraceMs = 60'000;  // between two phases of a benchmark nobody drives it
constexpr std::uint8_t kLeaf = 1;
constexpr std::string_view kAttach = "attach", kAdd = "add", kArrive = "arrive";

std::uint64_t random_token() {
  std::uint64_t token = 0;
  if (::getrandom(&token, sizeof token, 0) != sizeof token) {
    throw LoadError(std::string("getrandom: ") + std::strerror(errno));
  }
  return token;
}

template <class Number>
Number read(std::string_view bytes, std::size_t at = 0) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

}  // namespace

void Proxy::connect(const Place& root, const std::optional<in_addr>& source, std::string_view name) {
  trunk_.connect(root, source);
  std::string payload;
  add_number(payload, random_token());
  add_number(payload, received_);
  add_number(payload, kGraceMs);
  add_number(payload, kLeaf);
  add_text(payload, name);
  awaited_ = kAttach;
  asked_ns_ = beat_ns_ = now_ns();
  trunk_.send(0, Operation::kAttach, payload);
}

void Proxy::add(std::string_view key, std::int64_t delta) {
  std::string payload(1, static_cast<char>(Query::kAdd));
  append_field(payload, key);
  add_number(payload, delta);
  ask(kAdd, Operation::kForward, payload);
}

void Proxy::arrive(std::string_view key, std::int64_t world, std::int64_t count) {
  std::string payload;
  add_text(payload, key);
  add_number(payload, world);
  add_number(payload, count);
  ask(kArrive, Operation::kArrive, payload);
}

void Proxy::ask(std::string_view name, Operation operation, std::string_view payload) {
  if (!attached_ || waiting()) {
    throw LoadError(std::string(name) + ": it is not attached, or waits for an answer");
  }
  awaited_ = name;
  asked_ns_ = now_ns();
  ++sent_;
  trunk_.send(++last_id_, operation, payload);
}

bool Proxy::on_ready(std::uint32_t events) {
  const bool waited = waiting();
  trunk_.on_ready(events, [this](std::uint32_t id, FrameStatus status, std::string_view payload) {
    take(id, status, payload);
  });
  return waited && !waiting();
}

void Proxy::keep_alive() {
  constexpr auto every_ns = static_cast<std::uint64_t>(hold_ms(kGraceMs)) * 1'000'000 / 3;
  if (fd() < 0 || !attached_ || now_ns() - beat_ns_ < every_ns) {
    return;
  }
  beat_ns_ = now_ns();
  std::string payload;
  add_number(payload, received_);
  trunk_.send(0, Operation::kReceived, payload);
}

void Proxy::take(std::uint32_t id, FrameStatus status, std::string_view payload) {
  if (status == FrameStatus::kReceived) {
    return take_received(payload);
  }
  received_ += attached_ ? 1 : 0;
  if (status == FrameStatus::kError) {
    wrong("refused: " + std::string(payload));
  }
  if (status != FrameStatus::kOk) {
    throw LoadError("a frame of status " + std::to_string(static_cast<int>(status)) + ", which nobody has asked for");
  }
  if (!waiting() || id != last_id_) {
    throw LoadError("an answer to request " + std::to_string(id) + ", which is not under way");
  }
  take_answer(payload);
  awaited_ = {};
}

void Proxy::take_answer(std::string_view payload) {
  if (awaited_ == kAttach) {
    if (payload.size() != 16 || read<std::uint64_t>(payload) != 0 || read<std::uint64_t>(payload, 8) != 0) {
      wrong("not that of a root which has not heard of this trunk before");
    }
    attached_ = true;
  } else if (awaited_ == kAdd) {
    if (payload.size() != 1 + sizeof number_ || payload[0] != 0) {
      wrong("a number was expected, which may not be held; got " + std::to_string(payload.size()) + " bytes");
    }
    number_ = read<std::int64_t>(payload, 1);
  } else if (!payload.empty()) {
    wrong("nothing was expected, got " + std::to_string(payload.size()) + " bytes");
  }
}

void Proxy::take_received(std::string_view payload) {
  if (payload.size() != sizeof(std::uint64_t) || read<std::uint64_t>(payload) > sent_) {
    throw LoadError("the root claims to have what it was not sent");
  }
}

void Proxy::wrong(std::string_view what) const {
  throw LoadError("reply to " + std::string(awaited_) + ": " + std::string(what));
}

}  // namespace rdzv::load
