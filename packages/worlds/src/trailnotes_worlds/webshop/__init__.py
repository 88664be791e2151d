"""WebShop: a shop in which an agent searches, reads about and buys products, without Java."""
