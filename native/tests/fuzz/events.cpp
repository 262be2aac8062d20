#include "events.hpp"

#include <algorithm>

namespace rdzv::fuzz {

namespace {

constexpr std::size_t kShort = 60, kLong = 61;

}  // namespace

Program decode(std::string_view input) {
  Program program;
  std::size_t at = 0;
  const auto byte = [&]() -> std::size_t { return at < input.size() ? static_cast<unsigned char>(input[at++]) : 0; };
  program.limits = static_cast<std::uint8_t>(byte());
  while (at < input.size()) {
    const std::size_t head = byte();
    Event event;
    event.client = head & 3;
    std::size_t size = head >> 2;
    if (event.client == 3) {
      event.client = size % 4;
      event.kind = event.client == 3 ? Event::Kind::kWipe : Event::Kind::kLeave;
      size = 0;
    } else if (size == kShort) {
      size += byte();
    } else if (size >= kLong) {
      size = byte();
      size |= byte() << 8;
    }
    size = std::min(size, input.size() - at);
    event.bytes = input.substr(at, size);
    at += size;
    program.events.push_back(std::move(event));
  }
  return program;
}

std::string encode(const Program& program) {
  std::string input(1, static_cast<char>(program.limits));
  const auto put = [&](std::size_t byte) { input += static_cast<char>(byte); };
  for (const Event& event : program.events) {
    if (event.kind != Event::Kind::kSay) {
      put(3 | (event.kind == Event::Kind::kWipe ? 3 : event.client) << 2);
      continue;
    }
    for (std::size_t at = 0; at == 0 || at < event.bytes.size();) {
      const std::size_t size = std::min<std::size_t>(event.bytes.size() - at, 65535);
      const std::size_t code = size < kShort ? size : size < kShort + 256 ? kShort : kLong;
      put(event.client | code << 2);
      if (code == kShort) {
        put(size - kShort);
      } else if (code == kLong) {
        put(size & 0xff);
        put(size >> 8);
      }
      input.append(event.bytes, at, size);
      at += std::max<std::size_t>(size, 1);
    }
  }
  return input;
}

}  // namespace rdzv::fuzz
