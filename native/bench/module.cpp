// The Python face of the load generator: the extension module rdzv_launcher.bench._load.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "echo.hpp"
#include "errors.hpp"
#include "load.hpp"
#include "nodes.hpp"
#include "proxies.hpp"
#include "relay.hpp"

namespace nb = nanobind;
using namespace rdzv::load;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

void check_signals() {
  nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) {
    throw nb::python_error();
  }
}

std::vector<Place> parsed(const std::vector<std::pair<std::string, int>>& places) {
  std::vector<Place> found;
  for (const auto& [address, network] : places) {
    found.push_back(parse_place(address, network));
  }
  return found;
}

std::map<std::string, std::uint32_t> asked(const Node& node) {
  std::map<std::string, std::uint32_t> counts;
  for (std::size_t index = 0; index < rdzv::kCoordination.size(); ++index) {
    if (node.asked()[index] > 0) {
      counts.emplace(rdzv::kCoordination[index], node.asked()[index]);
    }
  }
  return counts;
}

}  // namespace

NB_MODULE(_load, m) {
  m.doc() = "The load generator of the benchmarks: thousands of connections, or nodes, on the calling thread.";

  const auto load_error = nb::exception<LoadError>(m, "LoadError");
  nb::exception<ConnectionLost>(m, "ConnectionLost", load_error);
  nb::exception<TimeLimit>(m, "TimeLimit", load_error);

  nb::class_<Figures>(m, "Figures", "What one phase took; `timed` round trips are behind the percentiles.")
      .def_ro("seconds", &Figures::seconds)
      .def_ro("requests", &Figures::requests)
      .def_ro("timed", &Figures::timed)
      .def_ro("p50_us", &Figures::p50_us)
      .def_ro("p99_us", &Figures::p99_us)
      .def_ro("failures", &Figures::failures);

  nb::class_<Load>(m, "Load", "Clients of one server. Not thread-safe; every method releases the GIL.")
      .def(
          "__init__",
          [](Load* self, const std::string& host, std::uint16_t port, bool echo) {
            new (self) Load(host, port, echo, check_signals);
          },
          nb::arg("host"), nb::arg("port"), nb::kw_only(), nb::arg("echo") = false)
      .def(
          "connect",
          [](Load& self, std::size_t count, std::size_t window, const std::vector<std::string>& sources, bool storm,
             double limit_s, const std::vector<std::pair<std::string, int>>& places) {
            return self.connect({count, window, parsed(places), sources, storm, limit_s});
          },
          nb::arg("count"), nb::kw_only(), nb::arg("window"), nb::arg("sources"), nb::arg("storm"), nb::arg("limit_s"),
          nb::arg("places") = std::vector<std::pair<std::string, int>>(), Released())
      .def(
          "run",
          [](Load& self, const std::string& workload, const std::string& prefix, std::size_t rounds, std::size_t gets,
             double limit_s) {
            Plan plan;
            plan.workload = workload;
            plan.prefix = prefix;
            plan.rounds = rounds;
            plan.gets = gets;
            return self.run(plan, limit_s);
          },
          nb::arg("workload"), nb::kw_only(), nb::arg("prefix"), nb::arg("rounds"), nb::arg("gets"), nb::arg("limit_s"),
          Released())
      .def("idle", &Load::idle, nb::arg("seconds"), Released())
      .def("close", &Load::close, Released());

  nb::class_<Node>(m, "Node", "One of them, as it was when it was asked for.")
      .def_prop_ro("id", &Node::id)
      .def_prop_ro("rank", &Node::rank)
      .def_prop_ro("world", &Node::world)
      .def_prop_ro("round", &Node::round)
      .def_prop_ro("joins", &Node::joins)
      .def_prop_ro("asked", &asked);

  nb::class_<Nodes>(m, "Nodes", "Simulated nodes of one run. Not thread-safe; `drive` releases the GIL.")
      .def(
          "__init__",
          [](Nodes* self, const std::string& host, std::uint16_t port, const std::string& run, double ttl,
             const std::string& settings, const std::string& alike,
             const std::vector<std::tuple<std::string, std::string, std::string>>& nodes) {
            std::vector<NodeFacts> facts;
            for (const auto& [id, told, source] : nodes) {
              facts.push_back({id, told, source});
            }
            new (self) Nodes(Run{parse_place(host + ":" + std::to_string(port), -1), run,
                                 static_cast<std::uint32_t>(ttl * 1000 + 0.5), settings, alike},
                             std::move(facts), check_signals);
          },
          nb::arg("host"), nb::arg("port"), nb::kw_only(), nb::arg("run"), nb::arg("ttl"), nb::arg("settings"),
          nb::arg("alike"), nb::arg("nodes"))
      .def("join", &Nodes::join)
      .def("expect", &Nodes::expect, nb::arg("joins"))
      .def("drive", &Nodes::drive, nb::arg("wake"), Released())
      .def("close", &Nodes::close, nb::arg("index"))
      .def_prop_ro("last", &Nodes::last)
      .def_prop_ro("joined", &Nodes::joined)
      .def_prop_ro("all", &Nodes::all, nb::rv_policy::reference_internal);

  nb::class_<Proxies>(m, "Proxies", "Simulated proxies of nodes. Not thread-safe; the phases release the GIL.")
      .def(
          "__init__",
          [](Proxies* self, const std::vector<std::pair<std::string, int>>& roots, std::size_t count,
             std::size_t workers) { new (self) Proxies(parsed(roots), count, workers, check_signals); },
          nb::arg("roots"), nb::kw_only(), nb::arg("count"), nb::arg("workers"))
      .def("attach", &Proxies::attach, nb::kw_only(), nb::arg("window"), nb::arg("sources"), nb::arg("limit_s"),
           Released())
      .def("add", &Proxies::add, nb::arg("key"), nb::kw_only(), nb::arg("limit_s"), Released())
      .def("barrier", &Proxies::barrier, nb::arg("key"), nb::kw_only(), nb::arg("rounds"), nb::arg("limit_s"),
           Released())
      .def("close", &Proxies::close, Released());

  m.def(
      "serve_delayed",
      [](int listener, const std::string& host, std::uint16_t port, double delay_s) {
        serve_delayed(listener, host, port, delay_s, check_signals);
      },
      nb::arg("listener"), nb::arg("host"), nb::arg("port"), nb::arg("delay_s"), Released(),
      "Pass on what comes to a listening socket's file descriptor, in both directions and with a delay in each, until "
      "the process ends.");
  m.def("serve_echo", &serve_echo, nb::arg("listener"), Released(),
        "Serve connections of a listening socket's file descriptor as the bare echo, until the process ends.");
}
