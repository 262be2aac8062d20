#include "generate.hpp"

#include <algorithm>

#include "coordination.hpp"
#include "rdzv/query.hpp"

namespace rdzv::fuzz {

namespace wire = test::wire;

std::string Generator::key() {
  switch (random_.below(12)) {
    case 0: return "";
    case 1: return std::string(40, 'k');  // the small limit
    case 2: return std::string(41, 'k');
    case 3: return random_.bytes(random_.below(30));
    default: return random_.one_in(2) ? "/a" : random_.pick({"/b", "/c", "init/", "/q"});  // most meet at one
  }
}

std::string Generator::value() {
  switch (random_.below(12)) {
    case 0: return "";
    case 1:
      // Shared from 16 KiB on; the small limit.
      return std::string(random_.one_in(2) ? random_.pick({16'383, 16'384, 30'000, 30'001}) : 100, 'v');
    case 2: return random_.bytes(random_.below(300));
    case 3: return random_.pick({"9223372036854775807", "-9223372036854775808", "9223372036854775808", " +12x", "-"});
    case 4: return random_.pick({"text", "v"});
    default: return std::to_string(static_cast<int>(random_.below(9)) - 2);
  }
}

std::uint64_t Generator::odd_number() {
  switch (random_.below(6)) {
    case 0: return ~std::uint64_t{0} - random_.below(20);
    case 1: return std::uint64_t{1} << random_.below(64);
    case 2:
      return random_.pick<std::uint64_t>({8192, 8193, 131072, 131073, 8u << 20, (8u << 20) + 1, 12, 13, 65536, 65537});
    case 3: return random_.next();
    default: return random_.below(20);
  }
}

std::string Generator::request(std::size_t type) {
  const std::string_view layout = kQueries[type].layout;
  std::string bytes = wire::op(static_cast<int>(type));
  // How often the part after an 'n' comes; and where it begins.
  std::size_t times = 1, begin = 0;
  if (layout.starts_with('n')) {
    times = random_.one_in(8) ? random_.below(15) : random_.below(4);
    bytes += wire::u64(times);
    begin = 1;
  }
  for (; times > 0; --times) {
    for (const char field : layout.substr(begin)) {
      switch (field) {
        case 'k': bytes += wire::text(key()); break;
        case 'v': bytes += wire::text(value()); break;
        case '4':
          bytes += wire::raw(static_cast<std::uint32_t>(random_.one_in(4) ? random_.next() : 0x3C85F7CE));
          break;
        case '8': bytes += wire::u64(random_.one_in(4) ? odd_number() : random_.below(6)); break;
        default: break;
      }
    }
  }
  return bytes;
}

std::string Generator::frame() {
  switch (random_.below(4)) {
    case 0: return wire::frame(static_cast<std::uint32_t>(random_.next()), 1, "");
    case 1: return wire::frame(7, 2, "other");
    case 2: return wire::frame(8, 2, key());
    default: return wire::frame(9, static_cast<std::uint8_t>(random_.next()), random_.bytes(random_.below(20)));
  }
}

std::string Generator::coordination() {
  const auto id = static_cast<std::uint32_t>(random_.below(100));
  const auto number = static_cast<std::uint32_t>(random_.below(4));
  const std::uint64_t revision = random_.one_in(4) ? odd_number() : random_.below(12);
  wire::Texts keys, pairs;
  for (std::size_t left = random_.one_in(8) ? random_.below(15) : random_.below(4); left > 0; --left) {
    keys.push_back(key());
    pairs.push_back(keys.back());
    pairs.push_back(value());
  }
  const std::uint8_t flags = random_.one_in(3) ? wire::kEphemeral : 0;
  switch (random_.below(10)) {
    case 0: return wire::open(id, static_cast<std::uint32_t>(random_.one_in(3) ? odd_number() : 1000), "run");
    case 1: return wire::list(id, random_.one_in(2) ? "" : key());
    case 2:
    case 3: return wire::watch(id, number, random_.one_in(2) ? "" : key(), random_.one_in(2) ? 0 : revision);
    case 4: return wire::unwatch(id, number);
    case 5: return wire::remove(id, keys);
    case 6: return wire::remove_if(id, key(), revision, keys);
    case 7: return wire::keep_alive(id);
    case 8: return wire::put_if(id, key(), revision, pairs, flags);
    default: return wire::put(id, pairs, flags);
  }
}

std::string Generator::introduction() {
  std::string said = random_.one_in(8) ? random_.bytes(9) : wire::introduction_head();
  said += static_cast<char>(random_.one_in(4) ? random_.next() : 1 + random_.below(4));
  said += random_.bytes(32);
  const std::size_t size = random_.one_in(6) ? random_.below(70'000) : random_.below(20);
  said += wire::raw(static_cast<std::uint16_t>(size)) + random_.bytes(std::min<std::size_t>(size, random_.below(1200)));
  const std::size_t proofs = random_.below(4);
  return said + static_cast<char>(random_.one_in(3) ? random_.next() : proofs) + random_.bytes(32 * proofs);
}

std::string Generator::greeting() {
  if (random_.one_in(25)) {
    return introduction();
  }
  if (random_.one_in(6)) {
    std::string said = wire::framed_greeting();
    for (std::size_t left = random_.below(4); left > 0; --left) {
      said += frame();
    }
    return said + (random_.one_in(3) ? "" : wire::frame(1, 2, "other"));
  }
  return random_.one_in(30) ? request(random_.below(kQueryCount)) : wire::greeting();
}

std::vector<Event> Generator::cut(std::size_t client, const std::string& said) {
  std::vector<Event> events;
  // Into at most some hundred pieces.
  const std::size_t piece = std::max(random_.pick<std::size_t>({1, 5, 30, 500, said.size() + 1}), said.size() / 200);
  for (std::size_t at = 0; at < said.size();) {
    const std::size_t size = 1 + random_.below(piece);
    events.push_back({Event::Kind::kSay, client, said.substr(at, size)});
    at += size;
  }
  return events;
}

std::vector<Event> Generator::speech(std::size_t client, std::size_t requests) {
  if (random_.one_in(5)) {
    std::string said = wire::framed_greeting() + wire::open(1, 1000, random_.one_in(5) ? "other" : "run");
    for (; requests > 0; --requests) {
      said += coordination();
    }
    if (random_.one_in(6)) {
      mutate_bytes(said);
    }
    return cut(client, said);
  }
  std::string said = greeting();
  // A client may like one kind of request: queues, or waits.
  const std::size_t favourite = random_.below(kQueryCount);
  for (; requests > 0; --requests) {
    // VALIDATE again is an offence, and would end most programs early.
    said += request(random_.one_in(4) ? favourite : random_.one_in(60) ? 0 : 1 + random_.below(kQueryCount - 1));
  }
  if (random_.one_in(6)) {
    mutate_bytes(said);
  }
  return cut(client, said);
}

std::vector<std::string> Generator::seeds() {
  std::vector<std::string> all;
  std::string one_after_the_other = wire::greeting();
  for (std::size_t type = 1; type < kQueryCount; ++type) {
    const std::string said = request(type);
    all.push_back(encode({0, {{Event::Kind::kSay, 0, wire::greeting() + said}}}));
    all.push_back(encode({1, cut(0, wire::greeting() + said)}));
    one_after_the_other += said;
  }
  all.push_back(encode({0, cut(0, one_after_the_other)}));
  all.push_back(
      encode({0, cut(0, wire::framed_greeting() + wire::frame(1, 2, "other") + one_after_the_other.substr(5))}));
  std::string coordinating = wire::framed_greeting() + wire::open(1, 1000, "run");
  for (int i = 0; i < 40; ++i) {
    coordinating += coordination();
  }
  all.push_back(encode({1, cut(0, coordinating)}));
  return all;
}

std::string Generator::fresh() {
  Program program;
  program.limits = random_.pick<std::uint8_t>({0, 0, 0, 1, 1, 2});
  std::vector<Event> speeches[3];
  for (std::size_t client = 0; client < 3; ++client) {
    if (client == 0 || random_.one_in(2)) {
      speeches[client] = speech(client, random_.below(random_.one_in(10) ? 200 : 15));
    }
  }
  // All in turn, each in its own order.
  std::size_t next[3] = {0, 0, 0};
  while (true) {
    std::vector<std::size_t> left;
    for (std::size_t client = 0; client < 3; ++client) {
      if (next[client] < speeches[client].size()) {
        left.push_back(client);
      }
    }
    if (left.empty()) {
      return encode(program);
    }
    const std::size_t client = random_.pick(left);
    program.events.push_back(speeches[client][next[client]++]);
    if (random_.one_in(200)) {
      program.events.push_back({random_.one_in(2) ? Event::Kind::kLeave : Event::Kind::kWipe, client, ""});
    }
  }
}

void Generator::mutate_bytes(std::string& bytes) {
  for (std::size_t left = 1 + random_.below(3); left > 0 && !bytes.empty(); --left) {
    const std::size_t at = random_.below(bytes.size());
    const std::size_t size = std::min(bytes.size() - at, random_.below(random_.one_in(4) ? 200 : 12));
    switch (random_.below(7)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ 1 << random_.below(8)); break;
      case 1: bytes[at] = static_cast<char>(random_.below(20)); break;
      case 2: bytes.insert(at, random_.bytes(1 + random_.below(9))); break;
      case 3: bytes.erase(at, size); break;
      case 4: bytes.insert(at, bytes.substr(at, size)); break;
      case 5: bytes.replace(at, 8, wire::u64(odd_number())); break;
      case 6: bytes.insert(at, request(random_.below(kQueryCount))); break;
    }
  }
}

void Generator::mutate_events(std::vector<Event>& events, const std::vector<std::string>& corpus) {
  const std::size_t at = random_.below(events.size());
  switch (random_.below(8)) {
    case 0: events.erase(events.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 1:
      events.insert(events.begin() + static_cast<std::ptrdiff_t>(random_.below(events.size())), Event(events[at]));
      break;
    case 2: std::swap(events[at], events[random_.below(events.size())]); break;
    case 3: events[at].client = random_.below(3); break;
    case 4: mutate_bytes(events[at].bytes); break;
    case 5: events[at].bytes += request(random_.below(kQueryCount)); break;
    case 6:
      events.insert(events.begin() + static_cast<std::ptrdiff_t>(at),
                    {random_.one_in(3) ? Event::Kind::kWipe : Event::Kind::kLeave, random_.below(3), ""});
      break;
    case 7: {  // the end of another
      const auto others = decode(random_.pick(corpus)).events;
      if (!others.empty()) {
        events.resize(at);
        events.insert(events.end(), others.begin() + static_cast<std::ptrdiff_t>(random_.below(others.size())),
                      others.end());
      }
      break;
    }
  }
}

std::string Generator::mutated(const std::vector<std::string>& corpus) {
  std::string input = random_.pick(corpus);
  if (random_.one_in(5)) {
    mutate_bytes(input);
    return input;
  }
  Program program = decode(input);
  for (std::size_t left = 1 + random_.below(4); left > 0 && !program.events.empty(); --left) {
    mutate_events(program.events, corpus);
  }
  return encode(program);
}

}  // namespace rdzv::fuzz
