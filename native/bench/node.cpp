#include "node.hpp"

#include <sys/epoll.h>

#include <utility>

#include "errors.hpp"
#include "load.hpp"
#include "rdzv/payload.hpp"

namespace rdzv::load {

namespace {

constexpr std::string_view kAll = "all/", kRound = "all/round", kEnd = "all/end", kNodes = "node/", kMembers = "members/",
                           kJob = "job";
constexpr std::uint32_t kMostAttempts = 100;  // to reach one workers' store: some ten seconds

std::string field(std::string_view name, std::int64_t number) {
  return ",\"" + std::string(name) + "\":" + std::to_string(number);
}

}  // namespace

Node::Node(const Run& run, NodeFacts facts) : run_(&run), facts_(std::move(facts)) {
  if (!facts_.source.empty()) {
    source_ = parse_address(facts_.source);
  }
}

void Node::connect() {
  step_ = Step::kOpening;
  session_.connect(run_->service, source_, run_->ttl_ms, run_->id);
}

void Node::close() noexcept {
  session_.close();
  store_.close();
  dialling_ = Dialling::kNot;
}

void Node::keep_alive() { session_.keep_alive(std::uint64_t{run_->ttl_ms} * 1'000'000 / 3); }

void Node::on_reply(std::string_view payload) {
  switch (step_) {
    case Step::kOpening:
      step_ = Step::kWatchingAll;
      session_.watch(1, kAll);
      return;
    case Step::kWatchingAll:
      step_ = Step::kWatchingOwn;
      session_.watch(2, std::string(kNodes) + facts_.id);
      return;
    case Step::kWatchingOwn:
      step_ = Step::kComparing;
      session_.put(kJob, run_->settings, false, true);
      return;
    case Step::kComparing:
      compare(payload);
      step_ = Step::kSaying;
      say();
      return;
    default:
      step_ = Step::kThere;
      act();
  }
}

void Node::compare(std::string_view payload) const {
  const Limits limits;
  Payload answer(payload, limits);
  if (answer.number<std::uint8_t>() != 0) {
    return;  // it is the first
  }
  answer.number<std::uint64_t>();
  const std::string_view theirs = answer.value();
  if (!theirs.starts_with(run_->alike)) {
    throw LoadError("the job has other settings than this node: " + std::string(theirs));
  }
}

void Node::on_event(std::string_view key, std::string_view value, bool gone) {
  if (gone) {
    if (key.starts_with(kNodes)) {
      place_ = {};
    }
  } else if (key == kRound) {
    declared_ = read_round(value);
  } else if (key == kEnd) {
    throw LoadError("the job has ended: " + std::string(value));
  } else if (key.starts_with(kNodes)) {
    place_ = read_assignment(value);
  }
}

void Node::say() {
  session_.put(std::string(kMembers) + facts_.id,
               facts_.told + (after_ > 0 ? field("after", after_) : "") + (reached_ > 0 ? field("reached", reached_) : "") + "}",
               true, false);
}

void Node::act() {
  if (step_ != Step::kThere || session_.asks()) {
    return;
  }
  if (declared_.state == "failed") {
    throw LoadError("round " + std::to_string(declared_.number) + " has failed");
  }
  if (works_ && is_over()) {
    leave();
  } else if (!works_) {
    follow();
  }
}

bool Node::is_over() const { return declared_.number != round_ ? declared_.number > 0 : declared_.over(); }

void Node::follow() {
  if (!place_.without.empty()) {
    throw LoadError("it has no place: " + place_.without);
  }
  if (place_.round <= round_) {
    return;
  }
  if (place_.node_id != facts_.id) {
    throw LoadError("it was told the place of node " + place_.node_id);
  }
  if (place_.rank < 0 || place_.rank >= place_.world) {
    throw LoadError("it was told rank " + std::to_string(place_.rank) + " of " + std::to_string(place_.world));
  }
  if (place_.master_addr.empty()) {
    throw LoadError("it was asked to serve the workers' store, which a simulated node cannot");
  }
  if (reached_ != place_.round) {
    if (dialled_for_ != place_.round) {
      store_.close();
      dialled_for_ = place_.round;
      attempts_ = 0;
      dialling_ = Dialling::kWanted;
    }
  } else if (declared_.number == place_.round && (declared_.complete() || declared_.over())) {
    enter();
  }
}

void Node::enter() {
  round_ = place_.round;
  if (declared_.over()) {  // before this node had heard that it was complete
    leave();
    return;
  }
  if (declared_.world != place_.world) {
    throw LoadError("it was told a world of " + std::to_string(place_.world) + " nodes, and all of " +
                    std::to_string(declared_.world));
  }
  rank_ = place_.rank;
  world_ = place_.world;
  works_ = true;
  ++joins_;
}

void Node::leave() {
  works_ = false;
  store_.close();
  reached_ = 0;
  after_ = round_;
  say();
}

void Node::dial() {
  store_.close();
  store_.open(AF_INET, source_);
  connecting_ = true;
  dialling_ = Dialling::kUnderWay;
  try {
    store_.connect(parse_place(place_.master_addr + ":" + std::to_string(place_.master_port), -1));
  } catch (const ConnectionLost& error) {
    dial_again(error);
  }
}

void Node::dial_again(const ConnectionLost& error) {
  store_.close();
  if (++attempts_ >= kMostAttempts) {
    throw LoadError("the workers' store at " + place_.master_addr + ": " + error.what());
  }
  dialling_ = Dialling::kWanted;
}

void Node::on_store(std::uint32_t events) {
  try {
    if (connecting_) {
      store_.established();
      connecting_ = false;
      Exchange greeting(false);
      greeting.connect(static_cast<std::uint32_t>(place_.rank) + 1);
      store_.send(greeting);
    }
    store_.flush();
    if (!store_.receive(events)) {
      return;
    }
  } catch (const ConnectionLost& error) {
    if (dialling_ == Dialling::kUnderWay) {
      dial_again(error);
    }
    store_.close();  // its round is over, which it is about to hear
    return;
  }
  dialling_ = Dialling::kNot;
  reached_ = dialled_for_;
  step_ = Step::kThere;
  say();
}

}  // namespace rdzv::load
