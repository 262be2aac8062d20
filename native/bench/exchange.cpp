#include "exchange.hpp"

#include <algorithm>
#include <cstring>

#include "rdzv/payload.hpp"

namespace rdzv::load {

std::string Reply::expected(std::size_t from, std::size_t count) const {
  std::string all(head.data(), head_size);
  all += body;
  return from < all.size() ? all.substr(from, count) : std::string();
}

std::size_t Reply::wrong(std::size_t offset, std::string_view part) const {
  if (offset + part.size() > size()) {
    return size() - offset;
  }
  if (number) {
    return std::string_view::npos;
  }
  std::size_t at = 0;
  for (; at < part.size() && offset + at < head_size; ++at) {
    if (part[at] != head[offset + at]) {
      return at;
    }
  }
  const std::string_view rest = part.substr(at);
  if (rest.empty() || body.compare(offset + at - head_size, rest.size(), rest) == 0) {
    return std::string_view::npos;
  }
  const auto from = body.begin() + static_cast<std::ptrdiff_t>(offset + at - head_size);
  return at + static_cast<std::size_t>(std::mismatch(rest.begin(), rest.end(), from).first - rest.begin());
}

void Exchange::start(Query query) {
  request_.assign(1, static_cast<char>(query));
  reply_ = Reply{};
  name_ = info(query).name;
  requests_ = 1;
  timed_ = true;
}

template <typename Number>
void Exchange::finish(Number head, std::string_view body) {
  std::memcpy(reply_.head.data(), &head, sizeof head);
  reply_.head_size = sizeof head;
  reply_.body = body;
  finish();
}

void Exchange::finish() {
  if (!echo_) {
    return;
  }
  const auto length = static_cast<std::uint32_t>(request_.size());
  const auto answer = static_cast<std::uint32_t>(reply_.size());
  std::memcpy(request_.data(), &length, sizeof length);
  std::memcpy(request_.data() + sizeof length, &answer, sizeof answer);
  const bool number = reply_.number;
  reply_ = Reply{};
  reply_.body = zeros(answer);
  reply_.number = number;
}

void Exchange::connect(std::uint32_t nonce) {
  start(Query::kValidate);
  add_number(request_, kValidateMagic);
  request_.push_back(static_cast<char>(Query::kPing));
  add_number(request_, nonce);
  name_ = info(Query::kPing).name;
  requests_ = 2;
  finish(nonce);
}

void Exchange::set(std::string_view key, std::string_view value) {
  start(Query::kSet);
  append_field(request_, key);
  append_field(request_, value);
  finish();
}

void Exchange::get(std::string_view key, std::string_view expected) {
  start(Query::kGet);
  append_field(request_, key);
  finish(std::uint64_t{expected.size()}, expected);
}

void Exchange::add(std::string_view key, std::int64_t delta) {
  start(Query::kAdd);
  append_field(request_, key);
  add_number(request_, delta);
  reply_.number = true;
  finish(delta);
}

void Exchange::wait(std::string_view key, bool others) {
  std::string field;
  append_field(field, key);
  wait_many(1, field, others);
}

void Exchange::barrier(std::string_view key, std::size_t world) {
  start(Query::kBarrier);
  append_field(request_, key);
  add_number(request_, static_cast<std::int64_t>(world));
  timed_ = false;
  finish(kStopWaiting);
}

void Exchange::wait_many(std::size_t count, std::string_view keys, bool others) {
  start(Query::kWait);
  add_number(request_, std::uint64_t{count});
  request_ += keys;
  timed_ = !others;
  finish(kStopWaiting);
}

void Exchange::multi_get(std::size_t count, std::string_view keys, std::string_view expected) {
  start(Query::kMultiGet);
  add_number(request_, std::uint64_t{count});
  request_ += keys;
  reply_.body = expected;
  finish();
}

void append_field(std::string& to, std::string_view bytes) {
  add_number(to, std::uint64_t{bytes.size()});
  to += bytes;
}

std::string_view zeros(std::size_t count) {
  static const std::array<char, kEchoLimit> bytes{};
  return {bytes.data(), std::min(count, kEchoLimit)};
}

}  // namespace rdzv::load
