#include "told.hpp"

#include <charconv>
#include <functional>

#include "errors.hpp"

namespace rdzv::load {

namespace {

// One field's value as it is written. Texts come without their quotes, and with their escapes.
struct Written {
  std::string_view value;
  bool text = false;

  void to(std::string& field) const {
    if (!text) {
      throw LoadError("not a text: " + std::string(value));
    }
    field = value;
  }
  void to(std::int64_t& field) const {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), field);
    if (text || error != std::errc() || end != value.data() + value.size()) {
      throw LoadError("not a whole number: " + std::string(value));
    }
  }
};

class Reader {
 public:
  explicit Reader(std::string_view json) : json_(json), left_(json) {}

  void fields(const std::function<void(std::string_view, const Written&)>& on_field) {
    expect('{');
    for (bool first = true; !skip('}'); first = false) {
      if (!first) {
        expect(',');
      }
      const std::string_view name = text();
      expect(':');
      on_field(name, value());
    }
    if (!left_.empty()) {
      fail();
    }
  }

 private:
  [[noreturn]] void fail() const { throw LoadError("not a flat JSON object: " + std::string(json_.substr(0, 200))); }
  void skip_blanks() {
    while (left_.starts_with(' ')) {
      left_.remove_prefix(1);
    }
  }
  bool skip(char wanted) {
    skip_blanks();
    const bool there = left_.starts_with(wanted);
    left_.remove_prefix(there ? 1 : 0);
    return there;
  }
  void expect(char wanted) {
    if (!skip(wanted)) {
      fail();
    }
  }
  std::string_view cut(std::size_t size) {
    const std::string_view part = left_.substr(0, size);
    left_.remove_prefix(size);
    return part;
  }
  std::string_view text() {
    expect('"');
    std::size_t end = 0;
    while (end < left_.size() && left_[end] != '"') {
      end += left_[end] == '\\' ? 2 : 1;
    }
    if (end >= left_.size()) {
      fail();
    }
    const std::string_view found = cut(end);
    left_.remove_prefix(1);
    return found;
  }
  Written value() {
    skip_blanks();
    if (left_.starts_with('"')) {
      return {text(), true};
    }
    const std::string_view found = cut(left_.find_first_of(",}"));
    if (found.empty() || found.find_first_of("[{\"") != std::string_view::npos) {
      fail();
    }
    return {found};
  }

  const std::string_view json_;
  std::string_view left_;
};

}  // namespace

Assignment read_assignment(std::string_view json) {
  Assignment found;
  Reader(json).fields([&](std::string_view name, const Written& value) {
    if (name == "round") {
      value.to(found.round);
    } else if (name == "rank") {
      value.to(found.rank);
    } else if (name == "world") {
      value.to(found.world);
    } else if (name == "master_port") {
      value.to(found.master_port);
    } else if (name == "master_addr") {
      value.to(found.master_addr);
    } else if (name == "node_id") {
      value.to(found.node_id);
    } else if (name == "refused" || name == "left_out") {
      value.to(found.without);
    }
  });
  return found;
}

Round read_round(std::string_view json) {
  Round found;
  Reader(json).fields([&](std::string_view name, const Written& value) {
    if (name == "number") {
      value.to(found.number);
    } else if (name == "world") {
      value.to(found.world);
    } else if (name == "state") {
      value.to(found.state);
    }
  });
  return found;
}

}  // namespace rdzv::load
