// The keys of a run: revisions, guards, ephemeral keys, watches, what is remembered of deletions.
#include "rdzv/run_space.hpp"

#include <array>
#include <atomic>

#include "check.hpp"
#include "coordination.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {

using Guard = RunSpace::Guard;
using Watched = RunSpace::Watched;

struct Side {  // one session's
  explicit Side(RunSpace& of) : space(of) {}
  ~Side() { end(); }

  std::shared_ptr<Subscriber> subscriber = std::make_shared<Subscriber>(0u, nullptr, 1u << 20);
  Member member{subscriber};
  RunSpace& space;
  Pushes pushes;

  RunSpace::Done put(const wire::Texts& texts, bool ephemeral = false, std::optional<Guard> guard = {}) {
    std::vector<RunSpace::Pair> pairs;
    for (std::size_t i = 0; i < texts.size(); i += 2) {
      pairs.push_back({texts[i], texts[i + 1]});
    }
    return space.put(member, ephemeral, guard, pairs, pushes);
  }
  RunSpace::Done remove(const wire::Texts& keys, std::optional<Guard> guard = {}) {
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    return space.remove(guard, views, pushes);
  }
  Watched watch(std::uint32_t id, std::string_view prefix, std::uint64_t after = 0) {
    Limits limits;
    limits.watches = 100;
    limits.run_watches = 150;
    return space.watch(member, id, prefix, after, limits, pushes);
  }
  std::string hear() {
    Output output;
    subscriber->take(output);
    return wire::told(drain(output));
  }
  void end() { space.end(member, pushes); }
};

std::string listed(RunSpace& space, std::string_view prefix = "") {
  std::string text;
  const auto revision = space.list(prefix, [&](const Event& event) {
    text += std::string(event.key) + "@" + std::to_string(event.revision) + "=" + std::string(event.value) + " ";
  });
  return text + "now " + std::to_string(revision);
}

}  // namespace

TEST(each_changed_key_counts_the_revision_up) {
  RunSpace space("r");
  Side one(space);
  CHECK_EQUAL(one.put({"b", "1", "a", "2"}).revision, 2u);
  CHECK_EQUAL(one.put({}).revision, 2u);
  CHECK_EQUAL(one.put({"b", "1"}).revision, 3u);  // the same value is a change
  CHECK_EQUAL(listed(space), "a@2=2 b@3=1 now 3");
  const auto done = one.remove({"a", "none", "a"});
  CHECK_EQUAL(done.existed, 1u);
  CHECK_EQUAL(done.revision, 4u);
  CHECK_EQUAL(one.remove({"none"}).revision, 4u);
  CHECK_EQUAL(listed(space), "b@3=1 now 4");
}

TEST(list_is_by_prefix_in_the_order_of_revisions) {
  RunSpace space("r");
  Side one(space);
  one.put({"m/2", "x", "m/1", "y", "m", "z", "n", "w", "m/3", ""});
  CHECK_EQUAL(listed(space, "m/"), "m/2@1=x m/1@2=y m/3@5= now 5");
  CHECK_EQUAL(listed(space, "m/1/"), "now 5");
  CHECK_EQUAL(listed(space, "m"), "m/2@1=x m/1@2=y m@3=z m/3@5= now 5");
}

TEST(a_guard_holds_for_everything_or_nothing) {
  RunSpace space("r");
  Side one(space);
  CHECK(one.put({"g", "1", "a", "x"}, false, Guard{"g", 0}).done);
  auto failed = one.put({"a", "y", "new", "z"}, false, Guard{"g", 0});
  CHECK(!failed.done);
  CHECK_EQUAL(failed.revision, 1u);
  CHECK_EQUAL(failed.value, "1");
  failed = one.put({"a", "y"}, false, Guard{"missing", 7});
  CHECK(!failed.done);
  CHECK_EQUAL(failed.revision, 0u);
  CHECK_EQUAL(failed.value, "");
  CHECK_EQUAL(listed(space), "g@1=1 a@2=x now 2");
  CHECK(one.put({"g", "2"}, false, Guard{"g", 1}).done);
  CHECK(!one.remove({"a", "g"}, Guard{"g", 1}).done);
  CHECK_EQUAL(one.remove({"a", "g"}, Guard{"g", 3}).existed, 2u);
  CHECK_EQUAL(listed(space), "now 5");
  CHECK(one.put({"g", "3"}, false, Guard{"g", 0}).done);  // it is absent again
}

TEST(ephemeral_keys_go_with_whoever_wrote_them_last) {
  RunSpace space("r");
  Side one(space), two(space), watcher(space);
  one.put({"a", "1", "b", "1", "c", "1", "d", "1"}, true);
  two.put({"b", "2"}, true);   // now it is two's
  two.put({"c", "2"}, false);  // now it stays
  one.put({"d", "2"}, true);
  watcher.watch(1, "", 7);
  one.end();
  CHECK_EQUAL(watcher.hear(), "[1: -a@8 -d@9]");
  CHECK_EQUAL(listed(space), "b@5=2 c@6=2 now 9");
  one.end();
  two.remove({"b"});
  two.put({"b", "3"});
  two.end();
  CHECK_EQUAL(listed(space), "c@6=2 b@11=3 now 11");
  CHECK_EQUAL(space.summary().bytes, 4u);
}

TEST(a_watch_says_what_is_there_and_then_what_changes) {
  RunSpace space("r");
  Side writer(space), one(space);
  writer.put({"m/1", "x", "other", "o", "m/2", "y"});
  writer.remove({"m/1"});
  CHECK_EQUAL(one.watch(7, "m/"), Watched::kWatched);
  CHECK_EQUAL(one.hear(), "[7: +m/2@3=y]");  // deletions are no news to whoever starts from nothing
  writer.put({"m/3", "z", "other", "o"});
  writer.put({"m", "no"});
  writer.remove({"m/2"});
  CHECK_EQUAL(one.hear(), "[7: +m/3@5=z -m/2@8]");
  CHECK_EQUAL(one.watch(7, "x"), Watched::kTaken);
  CHECK_EQUAL(one.watch(8, "m/3"), Watched::kWatched);
  writer.put({"m/3", "again"});
  CHECK_EQUAL(one.hear(), "[8: +m/3@5=z] [7: +m/3@9=again] [8: +m/3@9=again]");
  CHECK(space.unwatch(one.member, 7));
  CHECK(!space.unwatch(one.member, 7));
  writer.put({"m/4", ""});
  CHECK_EQUAL(one.hear(), "");
}

TEST(a_watch_after_a_revision_says_what_was_missed_in_order) {
  RunSpace space("r");
  Side writer(space), one(space);
  writer.put({"a", "1", "b", "1"});
  writer.remove({"a"});
  writer.put({"c", "1", "a", "2"});
  writer.remove({"b", "x"});
  one.watch(1, "", 2);
  CHECK_EQUAL(one.hear(), "[1: -a@3 +c@4=1 +a@5=2 -b@6]");
  one.watch(2, "", 5);
  CHECK_EQUAL(one.hear(), "[2: -b@6]");
  one.watch(3, "", 6);
  CHECK_EQUAL(one.hear(), "");
  one.watch(4, "a", 1);
  CHECK_EQUAL(one.hear(), "[4: -a@3 +a@5=2]");
  CHECK_EQUAL(one.watch(5, "", 7), Watched::kCompacted);  // of another history
}

TEST(forgotten_deletions_are_said_to_be_forgotten) {
  RunSpace space("r");
  Side writer(space), one(space);
  writer.put({"stays", "1"});
  for (std::size_t i = 0; i <= RunSpace::kDeletions; ++i) {
    writer.put({"k", ""});
    writer.remove({"k"});
  }
  // The first deletion, at revision 3, is the one that is forgotten.
  CHECK_EQUAL(one.watch(1, "", 2), Watched::kCompacted);
  CHECK_EQUAL(one.watch(1, "", 1), Watched::kCompacted);
  CHECK_EQUAL(one.watch(1, "", 3), Watched::kWatched);
  Output heard;
  CHECK_EQUAL(one.subscriber->take(heard).events, RunSpace::kDeletions);
  CHECK_EQUAL(one.watch(2, "", 0), Watched::kWatched);
  CHECK_EQUAL(one.hear(), "[2: +stays@1=1]");
}

TEST(no_more_is_remembered_of_deleted_keys_than_fits) {
  RunSpace space("r");
  Side one(space);
  const std::string longest(8192, 'k');
  for (std::size_t i = 0; i < 2 * RunSpace::kDeletedBytes / longest.size(); ++i) {
    const std::string key = longest + std::to_string(i);
    one.put({key, ""});
    one.remove({key});
  }
  const auto now = space.revision();
  CHECK_EQUAL(one.watch(1, "", now - 2 * RunSpace::kDeletedBytes / longest.size() - 4), Watched::kCompacted);
  CHECK_EQUAL(one.watch(2, "", now - RunSpace::kDeletedBytes / longest.size()), Watched::kWatched);
}

TEST(a_run_has_room_for_so_many_bytes_and_keys_and_all_runs_together) {
  std::atomic<std::uint64_t> stored{0};
  Limits limits;
  limits.run_bytes = 2000;
  limits.run_keys = 3;
  limits.stored_bytes = 3000;
  {
    RunSpace space("r", &stored), other("s", &stored);
    Side one(space), two(other);
    const std::string value(1000, 'v');
    one.put({"a", value});
    const RunSpace::Pair again{"a", value}, fresh{"b", ""};
    CHECK_EQUAL(space.lacks_room({&again, 1}, 1001, limits), RunSpace::Lacks::kBytes);
    CHECK_EQUAL(space.lacks_room({&fresh, 1}, 1, limits), RunSpace::Lacks::kNothing);
    two.put({"a", value});
    CHECK_EQUAL(stored.load(), 2u * (1001 + 160));
    CHECK_EQUAL(other.lacks_room({&fresh, 1}, 700, limits), RunSpace::Lacks::kBytesOfAll);
    two.remove({"a"});
    CHECK_EQUAL(other.lacks_room({&fresh, 1}, 700, limits), RunSpace::Lacks::kNothing);
    two.put({"1", "", "2", "", "3", ""});
    const std::array<RunSpace::Pair, 3> known{{{"1", ""}, {"2", ""}, {"3", ""}}};
    CHECK_EQUAL(other.lacks_room(known, 3, limits), RunSpace::Lacks::kNothing);
    CHECK_EQUAL(other.lacks_room({&fresh, 1}, 1, limits), RunSpace::Lacks::kKeys);
  }
  CHECK_EQUAL(stored.load(), 0u);
}

TEST(a_member_has_no_more_watches_than_allowed) {
  RunSpace space("r");
  Side one(space);
  for (std::uint32_t i = 0; i < 100; ++i) {
    CHECK_EQUAL(one.watch(i, std::to_string(i)), Watched::kWatched);
  }
  CHECK_EQUAL(one.watch(100, ""), Watched::kTooMany);
  Side two(space);
  for (std::uint32_t i = 0; i < 50; ++i) {
    CHECK_EQUAL(two.watch(i, std::to_string(i)), Watched::kWatched);
  }
  CHECK_EQUAL(two.watch(50, ""), Watched::kTooManyOfRun);
  CHECK_EQUAL(space.summary().watches, 150u);
  one.end();
  CHECK_EQUAL(space.summary().watches, 50u);
}

TEST(only_who_has_not_been_told_yet_is_to_be_told) {
  RunSpace space("r");
  Side writer(space), one(space), two(space);
  one.watch(1, "a");
  two.watch(1, "b");
  writer.put({"a", "", "a", "", "b", ""});
  CHECK_EQUAL(writer.pushes.size(), 2u);
  writer.pushes.clear();
  one.hear();
  writer.put({"a", "", "b", ""});
  REQUIRE_EQUAL(writer.pushes.size(), 1u);
  CHECK(writer.pushes[0] == one.subscriber);
}

TEST(a_put_costs_the_watches_it_concerns) {
  // With a watch on its own prefix for each of many, a put has to look at one of them, and at each length once.
  WatchIndex index;
  std::vector<Watch> watches(20'001);
  for (std::size_t i = 0; i < 10'000; ++i) {
    index.add("own/" + std::to_string(10'000 + i) + "/", watches[i]);
  }
  for (std::size_t i = 10'000; i < 20'000; ++i) {
    index.add("all/", watches[i]);
  }
  index.add("", watches.back());
  const auto matches = [&](std::string_view key) {
    std::vector<const Watch*> found;
    index.match(key, [&](const Watch& watch) { found.push_back(&watch); });
    return found;
  };
  REQUIRE_EQUAL(matches("own/10007/x").size(), 2u);
  CHECK(matches("own/10007/x")[1] == &watches[7]);
  CHECK_EQUAL(matches("own/1000").size(), 1u);
  CHECK_EQUAL(matches("all/x").size(), 10'001u);
  for (std::size_t i = 0; i < 20'000; i += 2) {
    index.remove(watches[i]);
  }
  CHECK_EQUAL(matches("all/").size(), 5'001u);
  CHECK_EQUAL(matches("own/10006/").size(), 1u);
  CHECK_EQUAL(matches("own/10007/").size(), 2u);
  for (std::size_t i = 1; i < 20'000; i += 2) {
    index.remove(watches[i]);
  }
  index.remove(watches.back());
  CHECK_EQUAL(index.size(), 0u);
  CHECK_EQUAL(matches("own/10007/").size(), 0u);
}

TEST(pushes_are_cut_at_a_mebibyte) {
  Subscriber one(0, nullptr, 1u << 30);
  const std::string value(100'000, 'v');
  for (std::uint64_t i = 1; i <= 25; ++i) {
    CHECK_EQUAL(one.push(1, {false, i, "k", value}), i == 1);
  }
  one.push(1, {false, 26, "k", std::string(5'000'000, 'v')});  // alone in its frame, as it is that long
  one.push(1, {true, 27, "k", ""});
  Output output;
  const auto taken = one.take(output);
  CHECK_EQUAL(taken.frames, 5u);
  CHECK_EQUAL(taken.events, 27u);
  const std::string bytes = drain(output);
  std::vector<std::uint32_t> sizes;
  for (std::size_t at = 0; at < bytes.size(); at += 4 + sizes.back()) {
    std::memcpy(&sizes.emplace_back(), bytes.data() + at, 4);
  }
  REQUIRE_EQUAL(sizes.size(), 5u);
  CHECK(sizes[0] <= Subscriber::kFrameBytes);
  CHECK(sizes[3] > 5'000'000u);
  CHECK(sizes[4] < 100u);
  CHECK(wire::told(bytes).find('?') == std::string::npos);
}

TEST(who_does_not_come_for_its_pushes_is_given_up) {
  Subscriber one(0, nullptr, 1000);
  CHECK(one.push(1, {false, 1, "k", std::string(900, 'v')}));
  CHECK(!one.push(1, {false, 2, "k", std::string(900, 'v')}));
  one.push(1, {false, 3, "k", "v"});
  Output output;
  CHECK(one.take(output).overflown);
  CHECK(output.empty());
  one.push(1, {false, 4, "k", "v"});
  CHECK(one.take(output).overflown);
}

TEST(runs_are_apart_and_are_forgotten_with_their_last_session) {
  Spaces spaces;
  const auto session = [&](std::string_view run) {
    return std::make_unique<Session>(spaces, run, "", Limits(), std::make_shared<Subscriber>(0u, nullptr, 100u), 1000, 0);
  };
  Pushes pushes;
  auto one = session("a"), two = session("a"), other = session("b");
  CHECK(one->space == two->space);
  CHECK(one->space != other->space);
  CHECK(one->id != two->id);
  const RunSpace::Pair pair{"k", "v"};
  one->space->put(one->member, false, {}, {&pair, 1}, pushes);
  CHECK_EQUAL(other->space->revision(), 0u);
  REQUIRE_EQUAL(spaces.summaries().size(), 2u);
  CHECK_EQUAL(spaces.summaries()[0].sessions, 2u);
  CHECK_EQUAL(spaces.summaries()[0].keys, 1u);
  one->end(pushes), one.reset();
  CHECK_EQUAL(spaces.forgotten(), 0u);
  two->end(pushes), two.reset();
  CHECK_EQUAL(spaces.summaries().size(), 1u);
  CHECK_EQUAL(spaces.forgotten(), 1u);
  two = session("a");
  CHECK_EQUAL(two->space->revision(), 0u);
  two->end(pushes);
  other->end(pushes);
  Spaces bound("mine");
  CHECK(bound.serves("mine"));
  CHECK(!bound.serves(""));
  CHECK(spaces.serves(""));
}

}  // namespace rdzv::test
