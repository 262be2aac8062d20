#include "framed.hpp"

#include <sys/epoll.h>

#include <cstring>

#include "clock.hpp"
#include "errors.hpp"
#include "rdzv/payload.hpp"

namespace rdzv::load {

namespace {

constexpr std::size_t kHead = 9;  // length, id, status or operation

}  // namespace

void Framed::connect(const Place& server, const std::optional<in_addr>& source) {
  socket_.open(server.address.ss_family, source);
  socket_.connect(server);
  connecting_ = true;
  opening_ += static_cast<char>(kFramingOpcode);
  opening_ += kFramingMagic;
  add_number(opening_, kFramingVersion);
}

void Framed::on_ready(std::uint32_t events, const Sink& sink) {
  if (connecting_) {
    socket_.established();
    connecting_ = false;
    sent_ns_ = now_ns();
    socket_.send(opening_);
    opening_ = {};
  }
  socket_.flush();
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
    socket_.read(events, [&](std::string_view bytes) { take(bytes, sink); });
  }
}

void Framed::send(std::uint32_t id, Operation operation, std::string_view payload) {
  std::string bytes;
  add_number(bytes, static_cast<std::uint32_t>(kHead - 4 + payload.size()));
  add_number(bytes, id);
  bytes += static_cast<char>(operation);
  bytes += payload;
  if (connecting_) {
    opening_ += bytes;
  } else {
    sent_ns_ = now_ns();
    socket_.send(bytes);
  }
}

void Framed::take(std::string_view bytes, const Sink& sink) {
  std::string joined;
  if (!partial_.empty()) {
    joined = std::move(partial_) + std::string(bytes);
    bytes = joined;
  }
  while (const std::size_t size = whole(bytes)) {
    const std::string_view one = bytes.substr(0, size);
    bytes.remove_prefix(size);
    if (greeted_) {
      std::uint32_t id = 0;
      std::memcpy(&id, one.data() + 4, sizeof id);
      sink(id, static_cast<FrameStatus>(one[8]), one.substr(kHead));
    } else if (one != std::string(kFramingMagic) + std::string(reinterpret_cast<const char*>(&kFramingVersion), 4)) {
      throw LoadError("what answers is not a native store of this version");
    } else {
      greeted_ = true;
    }
  }
  partial_ = std::string(bytes);
}

std::size_t Framed::whole(std::string_view bytes) const {
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

}  // namespace rdzv::load
