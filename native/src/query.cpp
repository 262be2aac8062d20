#include "rdzv/query.hpp"

#include <cstring>

namespace rdzv {

Scanner::Result Scanner::refuse(Refusal why) {
  refusal_ = why;
  return Result::kRefused;
}

bool Scanner::measure(char field, std::uint64_t number, const Limits& limits) {
  if (field == 'n') {
    if (number > limits.keys_per_request) {
      refusal_ = Refusal::kTooManyKeys;
    }
  } else if (number > (field == 'k' ? limits.key_bytes : limits.value_bytes)) {
    refusal_ = field == 'k' ? Refusal::kKeyTooLong : Refusal::kValueTooLong;
  } else if (end_ > limits.request_bytes || number > limits.request_bytes - end_) {
    refusal_ = Refusal::kRequestTooLong;
  }
  return refusal_ == Refusal::kNone;
}

void Scanner::next_field(std::string_view layout) {
  ++field_;
  if (group_ != 0 && field_ == layout.size() && --groups_ > 0) {
    field_ = group_;
  }
}

Scanner::Result Scanner::advance(std::string_view bytes, const Limits& limits) {
  if (bytes.empty()) {
    return Result::kIncomplete;
  }
  if (static_cast<unsigned char>(bytes[0]) >= kQueryCount) {
    return refuse(Refusal::kUnknownRequest);
  }
  const std::string_view layout = info(static_cast<Query>(bytes[0])).layout;
  if (end_ == 0) {
    end_ = 1;
  }
  while (field_ < layout.size()) {
    const char field = layout[field_];
    if (field == '4' || field == '8') {
      end_ += field == '4' ? 4 : 8;
      next_field(layout);
      continue;
    }
    if (end_ + 8 > bytes.size()) {
      return Result::kIncomplete;
    }
    std::uint64_t number = 0;
    std::memcpy(&number, bytes.data() + end_, 8);
    end_ += 8;
    if (!measure(field, number, limits)) {
      return Result::kRefused;
    }
    if (field == 'n') {
      groups_ = number;
      group_ = static_cast<std::uint8_t>(field_ + 1);
      field_ = number > 0 ? group_ : static_cast<std::uint8_t>(layout.size());
    } else {
      end_ += number;
      next_field(layout);
    }
  }
  return end_ <= bytes.size() ? Result::kComplete : Result::kIncomplete;
}

}  // namespace rdzv
