// The Python face of the load generator: the extension module rdzv_launcher.bench._load.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "echo.hpp"
#include "errors.hpp"
#include "load.hpp"
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

}  // namespace

NB_MODULE(_load, m) {
  m.doc() = "The load generator of the benchmarks: thousands of connections on the calling thread.";

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
             double limit_s, const std::vector<std::string>& places) {
            std::vector<Place> parsed;
            for (const std::string& place : places) {
              parsed.push_back(parse_place(place));
            }
            return self.connect({count, window, parsed, sources, storm, limit_s});
          },
          nb::arg("count"), nb::kw_only(), nb::arg("window"), nb::arg("sources"), nb::arg("storm"), nb::arg("limit_s"),
          nb::arg("places") = std::vector<std::string>(), Released())
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
