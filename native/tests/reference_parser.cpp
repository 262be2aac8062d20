#include "reference_parser.hpp"

#include <cstring>

namespace rdzv::test {

namespace {

struct Short {};

class Reader {
 public:
  Reader(std::string_view bytes, const Limits& limits) : bytes_(bytes), limits_(limits) {}

  template <class Integer>
  Integer number() {
    need(sizeof(Integer));
    Integer value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string key() { return text(limits_.key_bytes, Refusal::kKeyTooLong); }
  std::string value() { return text(limits_.value_bytes, Refusal::kValueTooLong); }
  std::size_t count() {
    const auto number_of_items = number<std::uint64_t>();
    if (number_of_items > limits_.keys_per_request) {
      throw Refusal::kTooManyKeys;
    }
    return number_of_items;
  }
  std::size_t at() const { return at_; }

 private:
  std::string text(std::uint64_t most, Refusal why) {
    const auto size = number<std::uint64_t>();
    if (size > most) {
      throw why;
    }
    if (size > limits_.request_bytes || at_ > limits_.request_bytes - size) {
      throw Refusal::kRequestTooLong;
    }
    need(size);
    at_ += size;
    return std::string(bytes_.substr(at_ - size, size));
  }
  void need(std::size_t size) const {
    if (bytes_.size() - at_ < size) {
      throw Short();
    }
  }

  std::string_view bytes_;
  const Limits& limits_;
  std::size_t at_ = 0;
};

void read(Reader& reader, Parsed& parsed) {
  const auto key = [&] { parsed.texts.push_back(reader.key()); };
  const auto value = [&] { parsed.texts.push_back(reader.value()); };
  switch (parsed.type) {
    case 0:   // VALIDATE
    case 13:  // PING
      parsed.number = reader.number<std::uint32_t>();
      break;
    case 2:  // COMPARE_SET
      key(), value(), value();
      break;
    case 1:   // SET
    case 9:   // APPEND
    case 14:  // QUEUE_PUSH
      key(), value();
      break;
    case 3:   // GET
    case 8:   // DELETE_KEY
    case 15:  // QUEUE_POP
    case 16:  // QUEUE_LEN
      key();
      break;
    case 4:   // ADD
    case 18:  // BARRIER
      key();
      parsed.number = reader.number<std::int64_t>();
      break;
    case 5:     // CHECK
    case 6:     // WAIT
    case 10: {  // MULTI_GET
      for (std::size_t left = reader.count(); left > 0; --left) {
        key();
      }
      break;
    }
    case 11: {  // MULTI_SET
      for (std::size_t left = reader.count(); left > 0; --left) {
        key(), value();
      }
      break;
    }
    case 7:   // GETNUMKEYS
    case 12:  // CANCEL_WAIT
    case 17:  // LIST_KEYS
      break;
    default: throw Refusal::kUnknownRequest;
  }
}

}  // namespace

Parsed parse(std::string_view bytes, const Limits& limits) {
  Parsed parsed;
  Reader reader(bytes, limits);
  try {
    parsed.type = reader.number<std::uint8_t>();
    read(reader, parsed);
    parsed.size = reader.at();
  } catch (Short) {
  } catch (Refusal why) {
    parsed.refusal = why;
  }
  return parsed;
}

}  // namespace rdzv::test
