// Reads the fields of a request that the scanner has found complete: nothing is checked again, nothing is copied.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace rdzv {

class Fields {
 public:
  // `body`: the request after its type byte. The views returned live as long as its bytes.
  explicit Fields(std::string_view body) : next_(body.data()) {}

  std::string_view bytes() {
    const auto size = number<std::uint64_t>();
    const std::string_view view(next_, size);
    next_ += size;
    return view;
  }

  template <class Integer>
  Integer number() {
    Integer value;
    std::memcpy(&value, next_, sizeof value);
    next_ += sizeof value;
    return value;
  }

 private:
  const char* next_;
};

}  // namespace rdzv
