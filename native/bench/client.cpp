#include "client.hpp"

#include <cstring>

#include "clock.hpp"
#include "errors.hpp"

namespace rdzv::load {

namespace {

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += text.empty() ? "" : " ";
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

void Client::send(const Exchange& exchange) {
  if (exchange.reply().size() > 0) {
    reply_ = exchange.reply();
    received_ = 0;
    name_ = exchange.name();
    timed_ = exchange.timed();
    sent_ns_ = now_ns();
  }
  socket_.send(exchange.request());
}

bool Client::receive(std::uint32_t events) {
  const bool waited = waiting();
  socket_.read(events, [this](std::string_view part) { take(part); });
  return waited && !waiting();
}

void Client::take(std::string_view part) {
  const std::size_t at = reply_.wrong(received_, part);
  if (at != std::string_view::npos) {
    const std::string where = waiting() ? "reply to " + std::string(name_) : "no request is under way";
    const std::size_t byte = received_ + at;
    throw LoadError(where + ": byte " + std::to_string(byte) + " of " + std::to_string(reply_.size()) + ": expected " +
                    hex(reply_.expected(byte, 16)) + ", got " + hex(part.substr(at, 16)));
  }
  if (reply_.number) {
    std::memcpy(reinterpret_cast<char*>(&number_) + received_, part.data(), part.size());
  }
  received_ += part.size();
}

}  // namespace rdzv::load
