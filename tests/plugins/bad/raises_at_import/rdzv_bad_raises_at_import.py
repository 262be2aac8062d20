raise RuntimeError("the licence server said no\nand said it twice")
