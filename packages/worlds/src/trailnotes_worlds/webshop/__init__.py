"""WebShop: a shop of products that an agent searches, reads and buys from, without Java."""
